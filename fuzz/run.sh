#!/bin/sh
# fuzz/run.sh SECONDS [TARGET ...]   run each target (all by default), stop at the first finding
# fuzz/run.sh --list                 list the targets
# Works on stable Rust without cargo-fuzz: the coverage instrumentation is a code generation flag.
set -eu
cd "$(dirname "$0")"
all=$(sed -n 's/^name = "\([a-z_]*\)"$/\1/p' Cargo.toml)
if [ "${1:-}" = --list ]; then echo "$all"; exit; fi
seconds=${1:-10}
[ $# -gt 0 ] && shift
host=$(rustc -vV | sed -n 's/^host: //p')
# With --target the flags do not apply to build scripts.
RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Ccodegen-units=1" \
    cargo build --release --target "$host"
# shellcheck disable=SC2086
[ $# -gt 0 ] || set -- $all
for target; do
    mkdir -p "corpus/$target" artifacts
    # Only read: what is found goes to the corpus.
    set -- "corpus/$target"
    if [ -d "seeds/$target" ]; then set -- "$@" "seeds/$target"; fi
    printf 'fuzz: %s for %s s\n' "$target" "$seconds"
    if "target/$host/release/$target" "$@" -max_total_time="$seconds" -rss_limit_mb=1024 -timeout=20 \
        -max_len=8192 -artifact_prefix="artifacts/$target-" -print_final_stats=1 2>"artifacts/$target.log"; then
        grep -E 'number_of_executed_units|new_units_added' "artifacts/$target.log" | sed 's/^/  /'
    else
        tail -n 30 "artifacts/$target.log"
        exit 1
    fi
done
