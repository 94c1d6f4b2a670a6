#!/bin/sh
# Makes the wheel for Python, which also gives the program, its libraries and pages, from what
# packaging/build.sh has built; and the source distribution, which gives the module alone.
#
#   packaging/wheel.sh               into target/packages
set -eu
. "$(dirname "$0")/common.sh"
cd "$root"
[ -x "$BUILT/narrows" ] || fail "there is no $BUILT/narrows: run packaging/build.sh first"
mkdir -p "$OUT"
# The environments are below the usual target; what is built goes beside the other packages.
CARGO_TARGET_DIR=$target
export CARGO_TARGET_DIR BUILT OUT
install_zig
if [ "${GLIBC:-}" = system ]; then
	set -- --compatibility linux
else
	PATH=$zig/bin:$PATH
	set -- --zig --compatibility "manylinux_$(echo $glibc | tr . _)"
fi
build_environment
WHEELS=$OUT VENV=$target/python-venv bindings/python/test.sh wheel --locked --target "$triple" "$@"
cd bindings/python
"$target/python-venv/bin/maturin" sdist --out "$OUT"
