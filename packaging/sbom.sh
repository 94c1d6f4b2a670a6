#!/bin/sh
# Lists the crates that are linked into the program and the libraries, with versions, hashes and licences, as
# CycloneDX: target/packages/narrows.cdx.json. Uses cargo-cyclonedx from PATH, else builds it under target/.
set -eu
. "$(dirname "$0")/common.sh"
cd "$root"
wanted=0.5.9
tool=$(command -v cargo-cyclonedx) || tool=$target/tools-cyclonedx/bin/cargo-cyclonedx
[ -x "$tool" ] || cargo install -q --locked --root "$target/tools-cyclonedx" cargo-cyclonedx --version $wanted
mkdir -p "$OUT"
work=$(mktemp -d)
trap 'rm -rf "$work"; find crates bindings -name narrows-sbom.json -delete' EXIT
# It writes one beside each manifest; that of the program covers what is linked into it.
"$tool" cyclonedx --manifest-path crates/narrows-cli/Cargo.toml --format json --target "$triple" --no-build-deps \
	--override-filename narrows-sbom --quiet
cp crates/narrows-cli/narrows-sbom.json "$OUT/narrows.cdx.json"
echo "$OUT/narrows.cdx.json"
