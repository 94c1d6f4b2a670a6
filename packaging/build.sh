#!/bin/sh
# Builds what is packaged, below target/package: linked against an old glibc by cargo-zigbuild and zig
# if they are there or pip can install them, else against this system's. The same sources give the
# same bytes, whatever the folder (packaging/reproduce.sh compares). GLIBC=system: against this system's in
# any case. CRATES=...: not all of them.
set -eu
. "$(dirname "$0")/common.sh"
cd "$root"
needs rustc readelf objdump
build_environment
set -- --release --locked "$@"
for crate in ${CRATES:-narrows-cli narrows-preload narrows-hdf5 narrows-c}; do
	set -- "$@" -p "$crate"
done

install_zig
if [ "${GLIBC:-}" = system ]; then
	cargo build --target "$triple" "$@"
else
	PATH="$zig/bin:$PATH" cargo zigbuild --target "$triple.$glibc" "$@"
fi

# What is needed of libraries is what is said here.
newest=$(needed_glibc "$BUILT/narrows" "$BUILT"/libnarrows_*.so)
echo "built for glibc $newest or later"
if [ "${GLIBC:-}" != system ] && ! at_most "$newest" $glibc; then
	fail "the programs need glibc $newest instead of $glibc"
fi
