# The commands of this project. `make demo` and `make test` need nothing but the tools that `check-tools` names; tests of
# programs that are not installed are skipped, and `make test` ends with a list of them.

CARGO ?= cargo
# Seconds for each fuzz target: a smoke run within `make test`, more by `make fuzz SECONDS=600`.
SMOKE_SECONDS = 3
# Rounds of every comparison of `make bench`.
ROUNDS = 3
SECONDS = 60

.PHONY: all demo test tests test-full python-test python-wheel bench bench-cp fuzz check-tools check-rust-components

all: check-tools
	$(CARGO) build --release

demo: check-tools
	$(CARGO) build --release -p narrows-cli
	./target/release/narrows demo

# Ends with what this machine could not test and why, or with CI=true fails for want of a program (.ci/packages).
test: export NARROWS_SKIPPED = $(CURDIR)/target/skipped
test: check-tools check-rust-components
	@mkdir -p target
	@: >$$NARROWS_SKIPPED
	@status=0; $(MAKE) --no-print-directory tests || status=$$?; .ci/skipped; exit $$status

tests:
	.ci/deny
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) test --workspace
	CARGO=$(CARGO) bindings/python/test.sh
	@if [ -x fuzz/run.sh ]; then fuzz/run.sh $(SMOKE_SECONDS); fi

# Adds what takes too long for every change: the tests marked `ignored`, in release, and a minute of each fuzz target.
test-full: test
	$(CARGO) test --workspace --release -- --include-ignored
	@if [ -x fuzz/run.sh ]; then fuzz/run.sh 60; fi

# The Python module: its tests in an environment of their own under target/; the wheel for every CPython from 3.11 on.
python-test: check-tools
	CARGO=$(CARGO) bindings/python/test.sh

python-wheel: check-tools
	CARGO=$(CARGO) bindings/python/test.sh wheel

# Needs nc and zstd to race against, and for the shaped links unshare, ip, tc and CORPUS=DIR (a folder of data for each kind).
bench: check-tools
	$(CARGO) build --release
	./target/release/narrows-lab bench $(if $(CORPUS),--corpus $(CORPUS),--parts store,pipe,latency,memory) \
		--rounds $(ROUNDS) --output docs/experiments/bench.json

# Against scp, rsync and tar with zstd, through an OpenSSH server of its own: needs root, sshd, rsync, zstd and CORPUS=DIR.
bench-cp: check-tools
	$(CARGO) build --release
	./target/release/narrows-lab bench --parts cp --corpus $(CORPUS) --rounds $(ROUNDS) --output docs/experiments/bench-cp.json

fuzz: check-tools
	fuzz/run.sh $(SECONDS)

check-tools:
	@missing=; \
	for tool in git cc c++ make $(CARGO); do command -v $$tool >/dev/null 2>&1 || missing="$$missing $$tool"; done; \
	if [ -n "$$missing" ]; then \
		echo "narrows needs$$missing: install git, a C and a C++ compiler and make from your system's packages (Debian: apt install git gcc g++ make), Rust from https://rustup.rs" >&2; \
		exit 1; \
	fi

check-rust-components:
	@missing=; \
	$(CARGO) fmt --version >/dev/null 2>&1 || missing="$$missing rustfmt"; \
	$(CARGO) clippy --version >/dev/null 2>&1 || missing="$$missing clippy"; \
	if [ -n "$$missing" ]; then echo "narrows' tests need$$missing: rustup component add$$missing" >&2; exit 1; fi
