#!/usr/bin/env bash
# Runs the programs whose coverage of src/io and src/store is measured, and prints it.  The seeded
# campaigns are cut short: they repeat the same branches, and instrumented code is slow (make test
# and make crash run them in full).
#   tools/coverage.sh BUILD     one line per program, then the table; status 1 if a test fails or a goal is missed
set -uo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: coverage.sh BUILD}
find "$build" -name '*.gcda' -delete
export HCACHE_CAMPAIGN=300 HCACHE_FLIPS=20 HCACHE_MANY=3000 CMOCKA_MESSAGE_OUTPUT=STDOUT

run() { # run PROGRAM
    local log start=$SECONDS
    log=$(mktemp)
    if timeout 600 "$1" >"$log" 2>&1 </dev/null; then
        printf '%-40s ok %4d s\n' "${1#"$build"/tests/}" $((SECONDS - start))
    else
        printf '%-40s FAILED, the last lines:\n' "${1#"$build"/tests/}"
        tail -15 "$log"
        rm -f "$log"
        return 1
    fi
    rm -f "$log"
}
export -f run
export build

failed=0
# (test_bits is left out: it takes the same branches as test_damage's flips, thousands of times.)
find "$build"/tests/{base,io,store} -name 'test_*' -executable -type f ! -name test_bits | sort |
    xargs -P "$(nproc)" -I{} bash -c 'run {}' || failed=1
python3 tools/coverage.py "$build" || failed=1
exit $failed
