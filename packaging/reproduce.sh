#!/bin/sh
# Builds the last commit twice, in folders of different names, and compares the programs byte by byte. Takes
# two release builds; CRATES=narrows-preload is a quick look at the means.
set -eu
. "$(dirname "$0")/common.sh"
cd "$root"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for folder in one another/and-a-longer-one; do
	mkdir -p "$work/$folder"
	git archive HEAD | tar -C "$work/$folder" -xf -
	(
		unset CARGO_TARGET_DIR BUILT
		# zig is not built, so it is the same.
		mkdir -p "$work/$folder/target"
		[ ! -d "$target/zig" ] || ln -s "$target/zig" "$work/$folder/target/zig"
		"$work/$folder/packaging/build.sh"
	)
done
found=0
for file in "$work/one/target/package/$triple/release"/*; do
	case $file in
	*/narrows | *.so | *.a) ;;
	*) continue ;;
	esac
	other=$work/another/and-a-longer-one/target/package/$triple/release/$(basename "$file")
	cmp "$file" "$other" || fail "$(basename "$file") depends on the folder or the time"
	sha256sum "$file" | sed "s|$work/one/target/package/||"
	found=$((found + 1))
done
[ $found -gt 0 ] || fail "nothing was built"
