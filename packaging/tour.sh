#!/bin/sh
# Uses the installed program as its README does, with nothing else than a minimal Debian has.
# packaging/test-install.sh runs it in a root of its own.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export HOME="$folder/home" XDG_RUNTIME_DIR="$folder"
mkdir home

step() {
	echo "--- $*"
}

step version, doctor
narrows -V
narrows --version | grep -q '^commit: '
narrows doctor
narrows doctor --json >doctor.json
grep -q '"works": true' doctor.json

step demo
narrows demo --seconds 0.5 /usr/bin/perl /usr/lib/*-linux-gnu/libc.so.6

step pages and completions
gzip -t /usr/share/man/man1/narrows*.1.gz 2>/dev/null || ls -l /usr/share/man/man1
bash -n /usr/share/bash-completion/completions/narrows

step pipe, send, recv
tar -C /usr/share -c zoneinfo bash-completion perl5 2>/dev/null >tree.tar || tar -C /etc -c . >tree.tar
narrows pipe <tree.tar >tree.nrw
narrows pipe -dc tree.nrw | cmp - tree.tar
narrows inspect tree.nrw >/dev/null
narrows recv --listen 127.0.0.1:7700 -o received --fsync &
narrows send tree.tar tcp://127.0.0.1:7700 --retry-connect 10
wait $!
cmp received tree.tar

step files
narrows -k tree.tar 2>/dev/null || narrows tree.tar
narrows check tree.tar.nrw
narrows list tree.tar.nrw
narrows cat --range 100-199 tree.tar.nrw | cmp - "$(tail -c +101 tree.tar | head -c 100 >part; echo part)"
tar -I narrows -cf etc.tar.nrw -C /etc passwd group
tar -I narrows -tf etc.tar.nrw | grep -qx passwd

step pack, unpack
narrows pack -o etc.nrw /etc
mkdir back
narrows unpack etc.nrw -C back
diff -r --no-dereference /etc back/etc

step cp, serve
mkdir served
narrows serve --listen 127.0.0.1:7700 --dir served --token-out token 2>/dev/null &
server=$!
for _ in 1 2 3 4 5 6 7 8 9 10; do
	[ -s token ] && break
	sleep 0.5
done
narrows cp -r --token-file token /etc narrows://127.0.0.1:7700/
diff -r --no-dereference /etc served/etc
kill $server
wait $server || true

step run
narrows run --no-agent -- cat /etc/passwd | cmp - /etc/passwd
narrows run --no-agent -- cat /proc/self/maps | grep -q libnarrows_preload.so

step hdf5, libnarrows
[ -f "$(narrows hdf5 --path)/libnarrows_hdf5.so" ]
ldconfig -p | grep -q libnarrows.so
echo "the tour is complete"
