#!/usr/bin/env bash
# Long fuzzing with libFuzzer (clang): each target for RUNS inputs under UndefinedBehaviorSanitizer, guided by coverage,
# then its grown corpus and a tenth as many new inputs under AddressSanitizer too. Without clang: RUNS blind mutations of
# the corpus under both, by driver.cpp. One process, the lowest priority.
#
#   tools/fuzz.sh [RUNS] [TARGET...]        10,000,000 and all targets
#   tools/fuzz.sh keep                      few files of the grown corpus that cover what it covers join the archive
#
# A line a run goes to build/fuzz/results.txt; what was found lies in build/fuzz/found. Ends with 1 if anything was.
set -euo pipefail
cd "$(dirname "$0")/.."
all=(chains fen binpack bin bulletformat marlinformat viriformat montyformat text plain epd pgn any chunks)
kept=build/fuzz/kept
grown=build/fuzz/corpus
bin=.venv/bin
clang=${CLANGXX:-$(command -v clang++ || command -v clang++-14 || true)}
mkdir -p build/fuzz
rm -rf "$kept" && mkdir "$kept" && tar -xJf data_loader/fuzz/corpus.tar.xz -C "$kept"

blind() {  # blind RUNS TARGET...
    local runs=$1 target line failed=0
    shift
    "$bin/cmake" -S data_loader -B build/fuzz/blind -G Ninja -DCMAKE_MAKE_PROGRAM="$PWD/$bin/ninja" \
        -DCMAKE_BUILD_TYPE=RelWithDebInfo -DNNUE_SANITIZE=address,undefined >build/fuzz/blind.log 2>&1 || { cat build/fuzz/blind.log; exit 1; }
    "$bin/cmake" --build build/fuzz/blind --target fuzz_targets >build/fuzz/blind.log 2>&1 || { tail -n 30 build/fuzz/blind.log; exit 1; }
    for target in "$@"; do
        if line=$(nice -n 19 "build/fuzz/blind/fuzz_$target" "$kept/$target" "$runs" 1 2>"build/fuzz/$target-blind.log" | tail -n 1); then
            line=${line#build/fuzz/blind/}
        else
            line="fuzz_$target: FOUND something: build/fuzz/$target-blind.log" failed=1
        fi
        printf '%s  blind    %s\n' "$(date -u +%Y-%m-%d)" "$line" | tee -a build/fuzz/results.txt
    done
    return "$failed"
}

build() {  # build SANITIZERS
    local folder=build/fuzz/${1%%,*}
    "$bin/cmake" -S data_loader -B "$folder" -G Ninja -DCMAKE_MAKE_PROGRAM="$PWD/$bin/ninja" -DCMAKE_BUILD_TYPE=RelWithDebInfo \
        -DCMAKE_CXX_COMPILER="$clang" -DNNUE_FUZZ=ON -DCMAKE_CXX_FLAGS=-fno-sanitize-coverage=trace-cmp,indirect-calls -DNNUE_SANITIZE="$1" >"$folder.log" 2>&1 || { cat "$folder.log"; exit 1; }
    "$bin/cmake" --build "$folder" --target fuzz_targets >>"$folder.log" 2>&1 || { tail -n 30 "$folder.log"; exit 1; }
}

# Long enough for two positions, and for a chain of many plies.
length() {
    case $1 in
        bin | bulletformat | marlinformat | any) echo 85 ;;
        fen) echo 100 ;;
        text | plain) echo 200 ;;
        *) echo 400 ;;
    esac
}

run() {  # run KIND TARGET RUNS
    local log=build/fuzz/$2-$1.log status=0
    nice -n 19 "build/fuzz/$1/fuzz_$2" -runs="$3" -seed=1 -max_len="$(length "$2")" -timeout=20 -print_final_stats=1 \
        -artifact_prefix="build/fuzz/found/$2-" "$grown/$2" >"$log" 2>&1 || status=$?
    local done coverage result=nothing
    done=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    coverage=$(grep -o 'cov: [0-9]* ft: [0-9]*' "$log" | tail -n 1)
    [ "$status" -eq 0 ] || result="FOUND something: $log"
    printf '%s  %-8s %-13s %10s inputs, %s: %s\n' "$(date -u +%Y-%m-%d)" "$1" "$2" "${done:-?}" "$coverage" "$result" |
        tee -a build/fuzz/results.txt
    return "$status"
}

if [ "${1:-}" = keep ]; then
    for target in "${all[@]}"; do
        [ -d "$grown/$target" ] || continue
        "build/fuzz/undefined/fuzz_$target" -set_cover_merge=1 -use_counters=0 "$kept/$target" "$grown/$target" 2>&1 |
            tail -n 1
        "$bin/python" data_loader/fuzz/corpus.py add "$target" "$kept/$target"/*
    done
    exit
fi
runs=${1:-10000000}
shift || true
[ $# -gt 0 ] || set -- "${all[@]}"
if [ -z "$clang" ]; then
    blind "$runs" "$@"
    exit
fi
build undefined
build address,undefined
mkdir -p build/fuzz/found
failed=0
for target in "$@"; do
    mkdir -p "$grown/$target"
    cp -n "$kept/$target"/* "$grown/$target"/
    run undefined "$target" "$runs" || failed=1
    run address "$target" $((runs / 10)) || failed=1
done
exit "$failed"
