# Read by the scripts of this folder; none of it runs by itself.
# shellcheck shell=sh disable=SC2034

debug=
root=$(cd "$(dirname "$0")/.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
# The newest glibc that the programs may need: that of Debian 10 and RHEL 8, of 2018.
glibc=2.28
# The environment of cargo-zigbuild and zig.
zig=$target/zig
triple=$(rustc -vV | sed -n 's/^host: //p')
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -n 1)
# Folder of the built programs, and of the packages.
BUILT=${BUILT:-$target/package/$triple/release}
OUT=${OUT:-$target/packages}

# Files of packages have the time of the sources, so that the same sources give the same bytes.
if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then
	SOURCE_DATE_EPOCH=$(git -C "$root" log -1 --format=%ct 2>/dev/null) ||
		SOURCE_DATE_EPOCH=$(stat -c %Y "$root/CHANGELOG.md")
fi
export SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC
umask 022

# For static libraries: those of Rust also hold bitcode for link-time optimisation, two thirds of the file.
strip_archive='strip --strip-debug --enable-deterministic-archives --remove-section=.llvmbc --remove-section=.llvmcmd'

fail() {
	echo "packaging: $*" >&2
	exit 1
}

needs() {
	for tool; do
		command -v "$tool" >/dev/null 2>&1 || fail "needs $tool (Debian: apt install binutils dpkg-dev gzip xz-utils)"
	done
}

# The newest glibc whose symbols these programs and libraries use.
needed_glibc() {
	for file; do
		[ ! -f "$file" ] || objdump -T "$file"
	done | sed -n 's/.*[( ]GLIBC_\([0-9.]*\).*/\1/p' | sort -Vu | tail -n 1
}

# Whether version $1 is at most version $2.
at_most() {
	[ "$(printf '%s\n' "$1" "$2" | sort -V | tail -n 1)" = "$2" ]
}

# Installs the C library into $1, with further words for make. It is linked by what linked the programs: with
# zig against the old glibc, with its own unwinder in place of libgcc_s.
install_c_library() {
	tree=$1
	shift
	linker=cc
	if at_most "$(needed_glibc "$BUILT/narrows")" $glibc && [ -x "$zig/bin/python" ]; then
		linker="$zig/bin/python -m ziglang cc -target ${triple%%-*}-linux-gnu.$glibc -lunwind"
	fi
	make -s -C "$root/bindings/c" install CARGO=false DESTDIR="$tree" CC="$linker" LDFLAGS=-Wl,--build-id=sha1 "$@"
}

# Copies a program or library without its debug information, which goes to $debug, a folder as
# /usr/lib/debug, by its build id.
split() {
	id=$(readelf -n "$1" | sed -n 's/^ *Build ID: *//p')
	[ -n "$id" ] || fail "$1 has no build id: link it with -Wl,--build-id=sha1"
	file=$debug/.build-id/$(printf %.2s "$id")/${id#??}.debug
	mkdir -p "$(dirname "$file")" "$(dirname "$2")"
	objcopy --only-keep-debug --compress-debug-sections "$1" "$file"
	chmod 644 "$file"
	strip --strip-unneeded --remove-section=.comment --remove-section=.note -o "$2" "$1"
	chmod "$3" "$2"
}

# Lays out what belongs to the program below $1, which is /usr or another prefix, with its debug
# information in $debug. $2: folder of the program that writes pages and scripts.
lay_out() {
	split "$BUILT/narrows" "$1/bin/narrows" 755
	split "$BUILT/libnarrows_preload.so" "$1/lib/narrows/libnarrows_preload.so" 644
	split "$BUILT/libnarrows_hdf5.so" "$1/lib/narrows/hdf5/libnarrows_hdf5.so" 644
	"$BUILT/narrows" man "$1/share/man/man1"
	gzip -9n "$1"/share/man/man1/*.1
	completions bash "$1/share/bash-completion/completions/narrows"
	completions zsh "$1/share/zsh/vendor-completions/_narrows"
	completions fish "$1/share/fish/vendor_completions.d/narrows.fish"
}

completions() {
	mkdir -p "$(dirname "$2")"
	"$BUILT/narrows" completions "$1" >"$2"
}

# Gives everything below $1 the time of the sources.
settle() {
	find "$1" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
}

# What cargo builds packages with. No path of this machine goes into the programs, neither by Rust nor by C.
build_environment() {
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
}

# Makes the virtual environment $zig. Without them, or with GLIBC=system, the programs
# are linked against the C library of this system.
install_zig() {
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
}
