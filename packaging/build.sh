#!/bin/sh
# Builds what is packaged, below target/package: linked against an old glibc by cargo-zigbuild and zig
# if they are there or pip can install them, else against this system's. The same sources give the
# same bytes, whatever the folder (packaging/reproduce.sh compares). GLIBC=system: against this system's in
# any case. CRATES=...: not all of them.
set -eu
. "$(dirname "$0")/common.sh"
cd "$root"
needs rustc readelf objdump

# No path of this machine goes into the programs, neither by Rust nor by C.
cargo_home=${CARGO_HOME:-$HOME/.cargo}
maps="$root=/narrows $cargo_home=/cargo $(rustc --print sysroot)=/rust"
flags='-Clink-arg=-Wl,--build-id=sha1'
c_flags=
for map in $maps; do
	flags="$flags --remap-path-prefix=$map"
	c_flags="$c_flags -ffile-prefix-map=$map"
done
export CARGO_TARGET_DIR="$target/package" RUSTFLAGS="$flags" CFLAGS="$c_flags" CXXFLAGS="$c_flags" CARGO_INCREMENTAL=0
unset CARGO_BUILD_RUSTFLAGS CARGO_ENCODED_RUSTFLAGS
set -- --release --locked "$@"
for crate in ${CRATES:-narrows-cli narrows-preload narrows-hdf5 narrows-c}; do
	set -- "$@" -p "$crate"
done

# cargo-zigbuild and zig, in a virtual environment.
zig=$target/zig
if [ "${GLIBC:-}" != system ] && ! cmp -s packaging/requirements.txt "$zig/requirements.txt"; then
	rm -rf "$zig"
	if "${PYTHON:-python3}" -m venv "$zig" &&
		"$zig/bin/pip" install -q --disable-pip-version-check -r packaging/requirements.txt; then
		cp packaging/requirements.txt "$zig/requirements.txt"
	else
		echo "zig cannot be installed: linking against the C library of this system" >&2
		rm -rf "$zig"
		GLIBC=system
	fi
fi
if [ "${GLIBC:-}" = system ]; then
	cargo build --target "$triple" "$@"
else
	PATH="$zig/bin:$PATH" cargo zigbuild --target "$triple.$glibc" "$@"
fi

# What is needed of libraries is what is said here.
newest=$(for file in "$BUILT/narrows" "$BUILT"/libnarrows_*.so; do [ ! -f "$file" ] || objdump -T "$file"; done |
	sed -n 's/.*[( ]GLIBC_\([0-9.]*\).*/\1/p' | sort -Vu | tail -n 1)
echo "built for glibc $newest or later"
if [ "${GLIBC:-}" != system ] && [ "$(printf '%s\n' "$newest" $glibc | sort -V | tail -n 1)" != $glibc ]; then
	fail "the programs need glibc $newest instead of $glibc"
fi
