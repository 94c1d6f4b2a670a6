#!/bin/sh
# Builds the module and runs its tests in a virtual environment under target/, which is recreated
# when requirements.txt changes. Arguments are passed to pytest.
#
#   test.sh site                    no test: only lays out the module as target/python-site
#   test.sh wheel [ARGUMENT...]     the release wheel instead, by maturin with these arguments. With
#                                   BUILT=DIR the program and the libraries come from there, as
#                                   packaging/build.sh makes them (packaging/wheel.sh). WHEELS=DIR and
#                                   VENV=DIR: where the wheel goes, and the environment is.
set -e
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
venv=${VENV:-$target/python-venv}
python=${PYTHON:-python3}
cargo=${CARGO:-cargo}

if ! "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
	echo "narrows' Python module needs python3 of version 3.11 or later with venv (Debian: apt install python3-venv)" >&2
	exit 1
fi
if ! cmp -s "$here/requirements.txt" "$venv/requirements.txt"; then
	rm -rf "$venv"
	"$python" -m venv "$venv"
	"$venv/bin/pip" install -q --no-input --disable-pip-version-check -r "$here/requirements.txt" || {
		echo "cannot install the packages of bindings/python/requirements.txt: is a package index reachable?" >&2
		exit 1
	}
	cp "$here/requirements.txt" "$venv/requirements.txt"
fi

# Compiles every Python file of the project with the oldest supported Python if it is installed,
# else with this one.
oldest=$venv/bin/python
if python3.11 -c '' 2>/dev/null; then oldest=python3.11; fi
(cd "$root" && git ls-files -z '*.py' | "$oldest" -c '
import sys
for name in sys.stdin.read().split("\0")[:-1]:
    compile(open(name, encoding="utf-8").read(), name, "exec")
')

if [ "$1" = wheel ]; then
	shift
	built=${BUILT:-$target/release}
	[ -n "$BUILT" ] || (cd "$root" && "$cargo" build -q --release -p narrows-hdf5 -p narrows-cli -p narrows-preload)
	# HDF5 loads every library of a folder, so the filter has one of its own.
	mkdir -p "$here/python/narrows/plugins"
	strip --strip-debug -o "$here/python/narrows/plugins/libnarrows_hdf5.so" "$built/libnarrows_hdf5.so"
	# pip installs what is here below the environment's folder: `narrows` is the program itself, and
	# finds its libraries beside it. maturin knows the folder by its name.
	data=$here/narrows._narrows.data
	rm -rf "$data"
	mkdir -p "$data/scripts" "$data/data/lib/narrows" "$data/data/share/man/man1"
	mkdir "$data/data/lib/narrows/hdf5"
	cp "$here/python/narrows/plugins/libnarrows_hdf5.so" "$data/data/lib/narrows/hdf5"
	strip -o "$data/scripts/narrows" "$built/narrows"
	strip -o "$data/data/lib/narrows/libnarrows_preload.so" "$built/libnarrows_preload.so"
	"$built/narrows" man "$data/data/share/man/man1"
	gzip -9n "$data"/data/share/man/man1/*.1
	cd "$here"
	exec "$venv/bin/maturin" build --release --out "${WHEELS:-$target/wheels}" "$@"
fi

# Lays out the module as an installed wheel, without building one: alternating maturin and cargo
# builds would each rebuild everything.
# `make test` has built them (NARROWS_BUILT), since two builds cannot run at a time.
[ -n "$NARROWS_BUILT" ] || (cd "$root" && "$cargo" build -q -p narrows-python -p narrows-hdf5 -p narrows-cli)
site=$target/python-site
rm -rf "$site"
mkdir -p "$site"
cp -R "$here/python/narrows" "$site/narrows"
cp "$target/debug/lib_narrows.so" "$site/narrows/_narrows.abi3.so"
mkdir -p "$site/narrows/plugins"
cp "$target/debug/libnarrows_hdf5.so" "$site/narrows/plugins/"
# Libraries find our plug-ins by the entry points of the installed package.
"$venv/bin/python" - "$here/pyproject.toml" "$site/narrows-0.dist-info" <<'EOF'
import pathlib, sys, tomllib
project = tomllib.loads(pathlib.Path(sys.argv[1]).read_text())["project"]
info = pathlib.Path(sys.argv[2])
info.mkdir()
info.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: narrows\nVersion: 0\n")
groups = [f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
          for group, entries in project.get("entry-points", {}).items()]
info.joinpath("entry_points.txt").write_text("\n".join(groups))
EOF

[ "$1" != site ] || exit 0
export PYTHONPATH="$site" PYTHONDONTWRITEBYTECODE=1 NARROWS_PROGRAM="$target/debug/narrows"
# mypy leaves its caches in the working directory.
cd "$target"
"$venv/bin/mypy" --config-file "$here/pyproject.toml" --no-error-summary -p narrows
"$venv/bin/python" -m mypy.stubtest --mypy-config-file "$here/pyproject.toml" --concise narrows._narrows
cd "$here"
exec "$venv/bin/python" -m pytest "$@"
