#!/bin/sh
# Makes the portable tarball from what packaging/build.sh has built: the program with its libraries, pages
# and completions, and the C library, as a tree that works wherever it is unpacked.
#
#   packaging/tarball.sh             target/packages/narrows-VERSION-MACHINE-linux.tar.gz
set -eu
. "$(dirname "$0")/common.sh"
needs readelf objcopy strip gzip tar
cd "$root"
[ -x "$BUILT/narrows" ] || fail "there is no $BUILT/narrows: run packaging/build.sh first"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
debug=$work/debug
name=narrows-$version-${triple%%-*}-linux
tree=$work/$name
mkdir -p "$OUT"

lay_out "$tree"
split "$BUILT/libnarrows_c.so" "$work/libnarrows_c.so" 755
mkdir "$work/c"
cp "$work/libnarrows_c.so" "$BUILT/libnarrows_c.a" "$work/c"
install_c_library "$tree" BUILT="$work/c" PREFIX= STRIP="$strip_archive"
# Where it is unpacked is not known here; pkg-config finds it by the place of the file.
# shellcheck disable=SC2016
sed -i 's|^prefix=.*|prefix=${pcfiledir}/../..|; s|^libdir=.*|libdir=${prefix}/lib|; s|^includedir=.*|includedir=${prefix}/include|' \
	"$tree/lib/pkgconfig/narrows.pc"
needed=$(needed_glibc "$tree/bin/narrows" "$tree"/lib/*.so.? "$tree"/lib/narrows/*.so "$tree"/lib/narrows/hdf5/*.so)
echo "tarball for glibc $needed or later"
doc=$tree/share/doc/narrows
install -D -m 644 -t "$doc" README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT
if [ -f "$OUT/narrows.cdx.json" ]; then
	install -m 644 "$OUT/narrows.cdx.json" "$doc"
fi

archive() {
	tar -C "$work" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --format=gnu -cf - "$1" |
		gzip -9n >"$2"
	echo "$2"
}
archive "$name" "$OUT/$name.tar.gz"
mv "$debug" "$work/$name-debug"
archive "$name-debug" "$OUT/$name-debug.tar.gz"
