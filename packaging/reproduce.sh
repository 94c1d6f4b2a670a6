#!/bin/sh
# Builds the last commit twice, in folders of different names, and compares the programs byte by byte. Takes
# two release builds; CRATES=narrows-preload is a quick look at the means.
#
#   reproduce.sh DIR     compares one build with the programs in DIR, which packaging/build.sh made of the
#                        same commit (target/package/TRIPLE/release)
set -eu
. "$(dirname "$0")/common.sh"
[ $# -le 1 ] || fail "reproduce.sh takes one folder at most"
first=
if [ $# = 1 ]; then
	first=$(cd "$1" && pwd) || fail "there is no folder $1"
fi
cd "$root"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Builds the last commit in the folder $1 of the temporary one, and sets `built` to its programs.
build() {
	mkdir -p "$work/$1/target"
	git archive HEAD | tar -C "$work/$1" -xf -
	# zig is not built, so it is the same. Its libraries name where they are, below the folder of the build.
	[ ! -d "$target/zig" ] || cp -al "$target/zig" "$work/$1/target/zig" 2>/dev/null || cp -a "$target/zig" "$work/$1/target"
	(
		unset CARGO_TARGET_DIR BUILT
		"$work/$1/packaging/build.sh"
	)
	built=$work/$1/target/package/$triple/release
}

if [ -z "$first" ]; then
	build one
	first=$built
fi
build another/and-a-longer-one
found=0
for file in "$built"/narrows "$built"/*.so "$built"/*.a; do
	[ -f "$file" ] || continue
	name=$(basename "$file")
	cmp "$first/$name" "$file" || fail "$name depends on the folder or the time, or is of another commit"
	(cd "$built" && sha256sum "$name")
	found=$((found + 1))
done
[ $found -gt 0 ] || fail "nothing was built"
