#!/bin/sh
# Installs the packages into a fresh minimal root, uses them there, removes them, and compares what is
# left with what was there before. Needs root and debootstrap, and a mirror for the first run, which keeps
# the root as target/minimal.tar. SUITE=bookworm, MIRROR=URL: another Debian, another mirror.
set -eu
. "$(dirname "$0")/common.sh"
cd "$root"
suite=${SUITE:-bookworm}
minimal=$target/minimal-$suite.tar

skip() {
	echo "skipped: $1" >&2
	[ -z "${NARROWS_SKIPPED:-}" ] || echo "packaging/test-install.sh: $1" >>"$NARROWS_SKIPPED"
	exit 0
}

[ "$(id -u)" = 0 ] || skip "installing into a minimal root needs root"
unshare --mount --pid --net --fork true 2>/dev/null || skip "namespaces are not allowed here"
set -- "$OUT"/*.deb
[ -f "$1" ] || fail "there are no packages in $OUT: make package"
if command -v lintian >/dev/null 2>&1; then
	# Packages with debug information cannot have overrides; the reason is in packaging/lintian/narrows.
	lintian --allow-root --fail-on error,warning --suppress-tags bogus-mail-host "$@"
else
	echo "skipped: there is no lintian" >&2
fi
if [ ! -f "$minimal" ]; then
	command -v debootstrap >/dev/null 2>&1 || skip "there is no debootstrap"
	fresh=$(mktemp -d)
	# Without MIRROR, that of this system if it is a Debian, else debootstrap's own.
	mirror=${MIRROR:-$(sed -n 's/^URIs: *//p; s/^deb \(\[[^]]*\] \)\{0,1\}\([^ ]*\) .*/\2/p' /etc/apt/sources.list \
		/etc/apt/sources.list.d/* 2>/dev/null | head -n 1)}
	# shellcheck disable=SC2086
	if ! debootstrap --variant=minbase "$suite" "$fresh" $mirror >"$target/debootstrap.log" 2>&1; then
		rm -rf "$fresh"
		skip "debootstrap failed, see $target/debootstrap.log"
	fi
	tar -C "$fresh" --one-file-system -cf "$minimal.part" .
	mv "$minimal.part" "$minimal"
	rm -rf --one-file-system "$fresh"
fi

new=$(mktemp -d)
# Mounts are in namespaces that end with their processes.
trap 'rm -rf --one-file-system "$new"' EXIT
tar -C "$new" -xf "$minimal"
mkdir "$new/packages"
cp "$@" "$new/packages"
cp packaging/tour.sh "$new/packages/tour.sh"

# Runs a command in the root, in namespaces of its own, with no network but a loopback.
# shellcheck disable=SC2016
inside() {
	unshare --mount --pid --net --ipc --uts --fork --kill-child sh -c '
		new=$1
		shift
		mount --make-rprivate /
		mount -t proc proc "$new/proc"
		mount -t tmpfs tmpfs "$new/tmp"
		mount --rbind /dev "$new/dev"
		ip link set lo up
		exec chroot "$new" /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
			LC_ALL=C.UTF-8 HOME=/tmp DEBIAN_FRONTEND=noninteractive "$@"
	' sh "$new" "$@"
}

# Everything but what packages of any kind change: the list of dpkg and its log, the cache of the linker.
state() {
	(cd "$new" && find . -xdev \( -path ./proc -o -path ./dev -o -path ./tmp -o -path ./packages \) -prune -o \
		-type f ! -path './var/lib/dpkg/*-old' ! -path './var/log/*' ! -path ./var/lib/dpkg/status \
		! -path './var/cache/ldconfig/*' ! -path ./etc/ld.so.cache ! -path ./var/lib/dpkg/lock\* \
		! -path ./var/lib/dpkg/triggers/Lock -exec sha256sum {} + -o \
		! -type f -printf '%y %m %p %l\n' | sort -k 2)
}

state >"$new/packages/before"
inside sh -c 'dpkg -i /packages/*.deb' >"$target/install.log" 2>&1 || {
	cat "$target/install.log"
	fail "the packages cannot be installed"
}
inside sh /packages/tour.sh
# There is no systemd that makes the folders of the services: purging removes them if they are empty.
# shellcheck disable=SC2016
inside sh -c 'sed -n "s/^d \([^ ]*\) .*/\1/p" /usr/lib/tmpfiles.d/narrows.conf | xargs -t mkdir -p'
names=$(for package; do dpkg-deb -f "$package" Package; done)
# shellcheck disable=SC2086
inside dpkg --purge $names >"$target/purge.log" 2>&1 || {
	cat "$target/purge.log"
	fail "the packages cannot be removed"
}
state >"$new/packages/after"
diff "$new/packages/before" "$new/packages/after" || fail "these files are left, or have changed"
! grep -q narrows "$new/var/lib/dpkg/status" || fail "dpkg still knows a package"
echo "installed, used and removed on $suite: $(echo "$names" | tr '\n' ' ')"
