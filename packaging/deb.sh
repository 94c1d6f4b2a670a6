#!/bin/sh
# Makes the Debian packages from what packaging/build.sh has built: narrows, libnarrowsN, libnarrows-dev,
# and narrows-dbgsym with the debug information of all of them. The result depends on nothing but the
# programs and the sources. Needs neither root nor debhelper.
#
#   packaging/deb.sh                 into target/packages
#   BUILT=target/debug packaging/deb.sh
#   DEBUG_PACKAGE=no                 without narrows-dbgsym, and the others hardly compressed: for tests
set -eu
. "$(dirname "$0")/common.sh"
needs dpkg-deb dpkg-shlibdeps readelf objcopy strip gzip
cd "$root"
[ -x "$BUILT/narrows" ] || fail "there is no $BUILT/narrows: run packaging/build.sh first"
arch=$(dpkg --print-architecture)
multiarch=$(dpkg-architecture -qDEB_HOST_MULTIARCH)
# The project has no address for mail yet; who distributes packages has one.
maintainer=${MAINTAINER:-The Narrows developers <narrows@localhost>}
# The thread count of xz shows in its output.
export DPKG_DEB_THREADS_MAX=1

temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
# Where dpkg-shlibdeps expects the trees of packages.
work=$temporary/debian
debug=$temporary/debug
mkdir "$work"
mkdir -p "$OUT"

soname=$(readelf -d "$BUILT/libnarrows_c.so" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')
abi=${soname##*.so.}
library=libnarrows$abi

# --- what each package contains ---

tree=$work/narrows
lay_out "$tree/usr"
units=packaging/systemd
if [ -d $units ]; then
	for unit in "$units"/*.service "$units"/*.socket "$units"/*.timer; do
		[ ! -f "$unit" ] || install -D -m 644 -t "$tree/lib/systemd/system" "$unit"
	done
	for kind in sysusers tmpfiles; do
		[ ! -f "$units/narrows.$kind.conf" ] ||
			install -D -m 644 "$units/narrows.$kind.conf" "$tree/usr/lib/$kind.d/narrows.conf"
	done
	mkdir -p "$tree/DEBIAN"
	for script in postinst prerm postrm; do
		install -m 755 "packaging/scripts/$script" "$tree/DEBIAN/$script"
	done
fi

install -D -m 644 -t "$tree/usr/share/doc/narrows/examples" packaging/examples/*
tree=$work/libnarrows-dev
install_c_library "$tree" BUILT="$(cd "$BUILT" && pwd)" PREFIX=/usr LIBDIR="/usr/lib/$multiarch" \
	INCLUDEDIR=/usr/include STRIP=true
newest=$(needed_glibc "$BUILT/narrows" "$BUILT/libnarrows_preload.so" "$BUILT/libnarrows_hdf5.so" \
	"$tree/usr/lib/$multiarch/$soname")
echo "packages for glibc $newest or later"
$strip_archive "$tree/usr/lib/$multiarch/libnarrows.a"
split "$tree/usr/lib/$multiarch/$soname" "$work/$library/usr/lib/$multiarch/$soname" 644
rm "$tree/usr/lib/$multiarch/$soname"
for example in bindings/c/examples/*.c; do
	install -D -m 644 "$example" "$tree/usr/share/doc/libnarrows-dev/examples/$(basename "$example")"
done

mkdir -p "$work/narrows-dbgsym/usr/lib"
mv "$debug" "$work/narrows-dbgsym/usr/lib/debug"

# --- the control files ---

# Libraries that the programs of a package need, as dpkg finds them; but of the C library the version
# whose symbols they use, since dpkg asks for that of this system where one library took in others, and
# before Debian 11 libgcc-s1 was libgcc1.
shared() {
	package=$1
	shift
	mkdir -p "$work/$package/DEBIAN"
	printf 'Source: narrows\n\nPackage: %s\nArchitecture: any\nDescription: x\n' "$package" >"$work/control"
	(cd "$temporary" && dpkg-shlibdeps -O "$@" | sed -n 's/^shlibs:Depends=//p' |
		sed "s/libc6 (>= [0-9.]*)/libc6 (>= $newest)/; s/libgcc-s1 ([^)]*)/& | libgcc1/")
}

# The copyright and the changelog, as Debian has them, the control file from stdin, and the package.
# $1: its name; $2: its overrides for lintian.
pack() {
	tree=$work/$1
	doc=$tree/usr/share/doc/$1
	if [ "$1" = narrows-dbgsym ]; then
		mkdir -p "$tree/usr/share/doc"
		ln -s narrows "$doc"
	else
		mkdir -p "$doc"
		install -m 644 packaging/copyright "$doc/copyright"
		changelog | gzip -9n >"$doc/changelog.Debian.gz"
		if [ "$1" = narrows ]; then
			gzip -9nc CHANGELOG.md >"$doc/changelog.gz"
			if [ -f "$OUT/narrows.cdx.json" ]; then
				install -m 644 "$OUT/narrows.cdx.json" "$doc"
			fi
		fi
	fi
	if [ -f "packaging/lintian/$2" ]; then
		install -D -m 644 "packaging/lintian/$2" "$tree/usr/share/lintian/overrides/$1"
	fi
	mkdir -p "$tree/DEBIAN"
	{
		echo "Package: $1"
		echo "Source: narrows"
		echo "Version: $version-1"
		echo "Architecture: $arch"
		echo "Maintainer: $maintainer"
		echo "Installed-Size: $(du -k --apparent-size -s "$tree" | cut -f 1)"
		cat
	} >"$tree/DEBIAN/control"
	(cd "$tree" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
	settle "$tree"
	file=$OUT/${1}_$version-1_$arch.deb
	# Debug information is compressed already.
	case $1 in
	*-dbgsym) level=1 ;;
	*) level=6 ;;
	esac
	[ "${DEBUG_PACKAGE:-}" != no ] || level=0
	dpkg-deb --root-owner-group -Zxz -z$level -b "$tree" "$file" >/dev/null
	echo "$file"
}

changelog() {
	cat <<-END
		narrows ($version-1) unstable; urgency=medium

		  * Upstream release; see changelog.gz of the package narrows.

		 -- $maintainer  $(date -R -u -d "@$SOURCE_DATE_EPOCH")
	END
}

recommends='Recommends: fuse3, openssh-client'
depends=$(shared narrows debian/narrows/usr/bin/narrows debian/narrows/usr/lib/narrows/libnarrows_preload.so \
	debian/narrows/usr/lib/narrows/hdf5/libnarrows_hdf5.so)
pack narrows narrows <<END
Section: net
Priority: optional
Depends: $depends
$recommends
Description: adaptive compression for data that crosses a network
 Narrows decides for every block whether and how to compress it, from the
 data, the link, the processors and the receiver as they are at that moment.
 There is no level to choose, and where compression does not pay, bytes go as
 they are.
 .
 The program copies files and folders over ssh or directly, carries streams,
 runs unmodified programs with compressed connections, and makes archives
 from which each member is read without the rest. This package also contains
 the library that it loads into programs, and the filter for HDF5 files.
END

mkdir -p "$work/$library/DEBIAN"
printf 'libnarrows %s %s (>= %s)\n' "$abi" "$library" "$version" >"$work/$library/DEBIAN/shlibs"
echo 'activate-noawait ldconfig' >"$work/$library/DEBIAN/triggers"
pack "$library" libnarrows <<END
Section: libs
Priority: optional
Multi-Arch: same
Depends: $(shared "$library" "debian/$library/usr/lib/$multiarch/$soname")
Description: adaptive compression for data that crosses a network - library
 Narrows decides for every block whether and how to compress it, from the
 data, the link, the processors and the receiver as they are at that moment.
 .
 This package contains the library for C and for what calls C.
END

pack libnarrows-dev libnarrows-dev <<END
Section: libdevel
Priority: optional
Multi-Arch: same
Depends: $library (= $version-1)
Description: adaptive compression for data that crosses a network - development
 Narrows decides for every block whether and how to compress it, from the
 data, the link, the processors and the receiver as they are at that moment.
 .
 This package contains the header, the static library, the description for
 pkg-config, and examples.
END

[ "${DEBUG_PACKAGE:-}" != no ] || exit 0
ids=$(cd "$work/narrows-dbgsym/usr/lib/debug/.build-id" && find . -name '*.debug' | sed 's|^\./||;s|/||;s|\.debug$||' | sort | tr '\n' ' ')
pack narrows-dbgsym narrows-dbgsym <<END
Section: debug
Priority: optional
Auto-Built-Package: debug-symbols
Build-Ids: ${ids% }
Depends: narrows (= $version-1)
Description: debug symbols for narrows and $library
END
