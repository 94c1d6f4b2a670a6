# Commands of this project. `make demo` and `make test` need only the tools that `check-tools`
# checks. Tests that need other programs are skipped if these are not installed; `make test` ends
# with a list of skipped tests.

CARGO ?= cargo
# Seconds per fuzz target in the smoke run of `make test`. For longer runs: `make fuzz SECONDS=600`.
SMOKE_SECONDS = 3
# Rounds of every comparison of `make bench`.
ROUNDS = 3
PYTHON = python3
SECONDS = 60
PREFIX ?= /usr/local
DESTDIR ?=
BUILT = $(or $(CARGO_TARGET_DIR),target)/release
# The laboratory is a workspace of its own; what is built of both is in one folder.
IN_LAB = --manifest-path lab/Cargo.toml --target-dir $(or $(CARGO_TARGET_DIR),target)

# Files that cargo fmt does not find, because a macro declares their modules.
DECLARED_BY_MACROS = crates/narrows/src/policy/*.rs crates/narrows/src/codec/*.rs

.PHONY: all install package package-test demo lab test tests test-interop tests-interop test-lab tests-lab test-full python-test python-wheel bench bench-cp bench-cold bench-arrays fuzz book fmt check-tools check-rust-components

all: check-tools
	$(CARGO) build --release
	@# HDF5 loads every library of a folder, so its filter has one of its own.
	@install -d $(BUILT)/hdf5
	@install -m 755 $(BUILT)/libnarrows_hdf5.so $(BUILT)/hdf5/

# The program, the library that `narrows run` loads, the HDF5 filter, pages and completions. The C library
# has an `install` of its own (bindings/c).
install: all
	install -d "$(DESTDIR)$(PREFIX)/bin" "$(DESTDIR)$(PREFIX)/lib/narrows/hdf5"
	install -m 755 "$(BUILT)/narrows" "$(DESTDIR)$(PREFIX)/bin/narrows"
	install -m 755 "$(BUILT)/libnarrows_preload.so" "$(DESTDIR)$(PREFIX)/lib/narrows/"
	install -m 755 "$(BUILT)/libnarrows_hdf5.so" "$(DESTDIR)$(PREFIX)/lib/narrows/hdf5/"
	"$(BUILT)/narrows" man "$(DESTDIR)$(PREFIX)/share/man/man1"
	install -d $(addprefix "$(DESTDIR)$(PREFIX)"/share/,bash-completion/completions zsh/site-functions fish/vendor_completions.d)
	"$(BUILT)/narrows" completions bash >"$(DESTDIR)$(PREFIX)/share/bash-completion/completions/narrows"
	"$(BUILT)/narrows" completions zsh >"$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_narrows"
	"$(BUILT)/narrows" completions fish >"$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/narrows.fish"

# The packages for Debian, the portable tarball, the wheel, the source distribution for pip and the list of
# what is linked in, in target/packages
# (docs/install.md). A release build with pages that all of them share.
package: check-tools
	packaging/build.sh
	packaging/sbom.sh
	packaging/deb.sh
	packaging/tarball.sh
	packaging/wheel.sh

# Installs them into a fresh minimal Debian, uses and removes them; the wheel and the tarball in folders.
# Needs root, and debootstrap once.
package-test:
	packaging/test-install.sh
	packaging/test-wheel.sh

demo: check-tools
	@# The program as it is installed, built in a third of the CPU time (profile.demo in Cargo.toml).
	$(CARGO) build --profile demo -p narrows-cli
	$(or $(CARGO_TARGET_DIR),target)/demo/narrows demo

# narrows-lab, which measures: beside the program in target/release.
lab: check-tools
	$(CARGO) build --release $(IN_LAB)

# Ends with a list of what this machine could not test, and why. With CI=true it fails if a program
# is missing (.ci/packages).
test: export NARROWS_SKIPPED = $(CURDIR)/target/skipped
test: check-tools check-rust-components
	@mkdir -p target
	@: >$$NARROWS_SKIPPED
	@.ci/elapsed
	@status=0; $(MAKE) --no-print-directory tests || status=$$?; .ci/skipped; exit $$status

tests: export RUSTC_WORKSPACE_WRAPPER = $(CURDIR)/.ci/lint
tests:
	.ci/deny
	.ci/shell
	.ci/links
	$(CARGO) fmt --all --check
	rustfmt --edition 2024 --check $(DECLARED_BY_MACROS)
	@.ci/elapsed build
	@# One build for the lints and for the tests in Rust and in Python: another selection of crates has
	@# other features and compiles half of them again.
	$(CARGO) build --workspace --lib --bins --tests --examples
	@.ci/elapsed tests
	.ci/reference
	SMOKE_SECONDS=$(SMOKE_SECONDS) .ci/beside program rust python fuzz
	@.ci/elapsed end

# Tests with programs, pages and systems that are not of this tree: `narrows run` with servers and clients of
# others (foreign), packages in a fresh minimal Debian (packages), commands of the documents (pages).
# INTEROP=pages: some of them. `.ci/run` runs those whose files have changed (.ci/interop).
INTEROP = foreign packages pages
test-interop: export NARROWS_SKIPPED = $(CURDIR)/target/skipped-interop
test-interop: check-tools check-rust-components
	@mkdir -p target
	@: >$$NARROWS_SKIPPED
	@.ci/elapsed
	@status=0; $(MAKE) --no-print-directory tests-interop || status=$$?; .ci/skipped; exit $$status

tests-interop: export RUSTC_WORKSPACE_WRAPPER = $(CURDIR)/.ci/lint
tests-interop:
	$(CARGO) build --workspace --lib --bins --tests --examples
	@# Some pages use the Python module.
	$(if $(filter pages,$(INTEROP)),NARROWS_BUILT=1 bindings/python/test.sh site)
	@.ci/elapsed "tests of $(INTEROP)"
	.ci/beside $(INTEROP)
	@.ci/elapsed end

# The laboratory's tests. Some need the program as `make test` builds it.
test-lab: export NARROWS_SKIPPED = $(CURDIR)/target/skipped-lab
test-lab: check-tools check-rust-components
	@mkdir -p target
	@: >$$NARROWS_SKIPPED
	@status=0; $(MAKE) --no-print-directory tests-lab || status=$$?; .ci/skipped; exit $$status

tests-lab: export RUSTC_WORKSPACE_WRAPPER = $(CURDIR)/.ci/lint
tests-lab:
	$(CARGO) fmt --all --check --manifest-path lab/Cargo.toml
	$(CARGO) build --workspace --lib --bins --tests $(IN_LAB)
	.ci/silent 900 $(CARGO) test --workspace $(IN_LAB)

# Adds tests that take too long for every change: those of other programs, those marked `ignored`, in release
# mode, and one minute per fuzz target.
test-full: test test-interop
	$(CARGO) test --workspace --release -- --include-ignored
	$(CARGO) test --workspace --release $(IN_LAB) -- --include-ignored
	@if [ -x fuzz/run.sh ]; then fuzz/run.sh 60; fi

# The Python module: tests in a virtual environment under target/; a wheel for CPython 3.11 and
# later.
python-test: check-tools
	CARGO=$(CARGO) bindings/python/test.sh

python-wheel: check-tools
	CARGO=$(CARGO) bindings/python/test.sh wheel

# Needs nc and zstd to compare with; for the shaped links also unshare, ip, tc and CORPUS=DIR (with
# one folder for each kind of data).
bench: check-tools
	$(CARGO) build --release
	$(CARGO) build --release $(IN_LAB)
	$(BUILT)/narrows-lab bench $(if $(CORPUS),--corpus $(CORPUS),--parts store,pipe,latency,memory) \
		--rounds $(ROUNDS) --output docs/experiments/bench.json

# Compares with scp, rsync and tar with zstd, over its own OpenSSH server. Needs root, sshd, rsync,
# zstd and CORPUS=DIR.
bench-cp: check-tools
	$(CARGO) build --release
	$(CARGO) build --release $(IN_LAB)
	$(BUILT)/narrows-lab bench --parts cp --corpus $(CORPUS) --rounds $(ROUNDS) --output docs/experiments/bench-cp.json

# Short transfers over shaped links with everything cold, beside the prediction of virtual time. Needs
# root, nc, zstd, lz4, ip, tc and CORPUS=DIR. Quotes the half of the files that nothing is tuned on.
bench-cold: check-tools
	$(CARGO) build --release
	$(CARGO) build --release $(IN_LAB)
	$(BUILT)/narrows-lab bench --parts cold --corpus $(CORPUS) --rounds $(ROUNDS) --half quoted \
		--links 10,100,1000,0 --delays 0.1 --sizes 100000,1M,4M --output docs/experiments/bench-cold.json

# Arrays of numbers against the libraries that people use, on one core. Needs CORPUS=DIR, and PYTHON with
# numpy, netCDF4, numcodecs, blosc2, pcodec, pysz and fpzip; zfpy keeps numcodecs from loading and wants
# a Python of its own.
ZFP_PYTHON ?= $(PYTHON)
bench-arrays: check-tools
	$(CARGO) build --release $(IN_LAB)
	$(BUILT)/narrows-lab bench --parts arrays --corpus $(CORPUS) --rounds $(ROUNDS) \
		--python $(PYTHON) --zfp-python $(ZFP_PYTHON) --output docs/experiments/bench-arrays.json

fuzz: check-tools
	fuzz/run.sh $(SECONDS)

# The book of docs/, where mdBook is installed: target/book/html.
book:
	.ci/book

# Formats everything.
fmt:
	$(CARGO) fmt --all
	$(CARGO) fmt --all --manifest-path lab/Cargo.toml
	rustfmt --edition 2024 $(DECLARED_BY_MACROS)

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
