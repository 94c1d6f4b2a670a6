#!/bin/sh
# Installs the wheel by pip into an environment of its own, uses the module and the program, removes it,
# and compares what is left with what was there before. Then the same for the portable tarball, in
# a folder of another name.
set -eu
. "$(dirname "$0")/common.sh"
wheel=$(find "$OUT" -name "narrows-$version-*.whl")
tarball=$OUT/narrows-$version-${triple%%-*}-linux.tar.gz
[ -f "$wheel" ] || fail "there is no wheel in $OUT: packaging/wheel.sh"
[ -f "$tarball" ] || fail "there is no tarball in $OUT: packaging/tarball.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HOME="$work/home" XDG_RUNTIME_DIR="$work"
mkdir "$HOME"

# Uses the program in folder $1 as it is installed.
use() {
	seq 100000 >"$work/numbers"
	"$1/narrows" -V
	"$1/narrows" doctor >/dev/null
	"$1/narrows" pipe -c "$work/numbers" | "$1/narrows" pipe -d | cmp - "$work/numbers"
	"$1/narrows" run --no-agent -- cat /proc/self/maps | grep -q libnarrows_preload.so
	[ -f "$("$1/narrows" hdf5 --path)/libnarrows_hdf5.so" ]
	[ -f "$1/../share/man/man1/narrows.1.gz" ]
}

python3 -m venv "$work/venv"
list() {
	# pip leaves empty folders, as of every package.
	find "$work/venv" ! -type d ! -name '*.pyc' | sort
}
list >"$work/before"
"$work/venv/bin/pip" install -q --disable-pip-version-check --no-index "$wheel"
use "$work/venv/bin"
"$work/venv/bin/python" -c '
import narrows
data = bytes(range(256)) * 100
assert narrows.decompress(narrows.compress(data)) == data
'
"$work/venv/bin/pip" uninstall -q -y --disable-pip-version-check narrows
list >"$work/after"
diff "$work/before" "$work/after" || fail "the wheel leaves these files"

mkdir "$work/another-folder"
tar -C "$work/another-folder" --strip-components=1 -xzf "$tarball"
use "$work/another-folder/bin"
echo "the wheel and the tarball work"
