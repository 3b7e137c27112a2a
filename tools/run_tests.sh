#!/usr/bin/env bash
# Runs every test under tests/ and closes with one line: N passed, N failed, N skipped.
#   tools/run_tests.sh BUILD_DIR           runs what is built there
#   tools/run_tests.sh --build VARIANT     builds that variant first
# TESTS=REGEX limits which ("store|e2e"); TEST_TIMEOUT=SECONDS bounds each program (default 300, and
# four times that where a sanitizer or coverage slows every program down, twelve times for threads').
#
# C tests are cmocka programs; tests/e2e/test_*.sh and *.py print TAP themselves.  A program that
# crashes, times out, prints fewer results than its plan says, or prints none, is a failure.
# A skip prints its reason: cmocka tests print a line "skipped: reason" right before skip().
set -uo pipefail
cd "$(dirname "$0")/.."

pattern=${TESTS:-.}
passed=0 failed=0 skipped=0

finish() { # the closing line, always the last
    echo "whole run: $SECONDS s"
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
    exit
}

if [ "${1:-}" = --build ]; then
    build=build/$2
    jobs=-j$(nproc 2>/dev/null || echo 2)
    case ${MAKEFLAGS:-} in *-j*) jobs= ;; esac
    make --no-print-directory ${jobs:+"$jobs"} VARIANT="$2" all tests || {
        echo "the build failed"
        failed=1
        finish
    }
    echo "build: $SECONDS s"
else
    build=${1:?usage: run_tests.sh BUILD_DIR | --build VARIANT}
fi

case $build in
*/release | */debug) limit=${TEST_TIMEOUT:-300} ;;
*/tsan) limit=${TEST_TIMEOUT:-3600} ;;
*) limit=${TEST_TIMEOUT:-1200} ;;
esac

# A test's result must not depend on what the caller has configured.  HCACHE_SHARED says where the
# shared models are (default ../shared).
for v in "${!HCACHE_@}"; do [ "$v" = HCACHE_SHARED ] || unset "$v"; done
export HCACHE_BUILD=$build
export CMOCKA_MESSAGE_OUTPUT=TAP
# A race or a leak ends the program with a code of its own.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1} UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

run_one() { # run_one NAME COMMAND...
    local name=$1 start=$SECONDS rc plan ok bad skip missing why=
    shift
    timeout -k 10 "$limit" "$@" >"$log" 2>&1 </dev/null
    rc=$?
    # cmocka 1.1.5 prints a skipped test as "not ok N # SKIP name"; TAP says "ok N name # SKIP why",
    # and "1..0 # SKIP why" for a whole file.
    plan=$(grep -aoE '^1\.\.[0-9]+' "$log" | tail -1 | cut -c4-)
    skip=$(grep -acE '^(not )?ok .*# SKIP|^1\.\.0 # SKIP' "$log")
    ok=$(grep -aE '^ok ' "$log" | grep -vc '# SKIP')
    bad=$(grep -aE '^not ok ' "$log" | grep -vc '# SKIP')
    missing=$((${plan:-0} - ok - bad - skip))
    if [ "$missing" -gt 0 ]; then
        bad=$((bad + missing)) why="$missing of $plan results are missing; "
    elif [ $((ok + bad + skip)) -eq 0 ]; then
        bad=1 why="no results; "
    elif [ "$rc" -ne 0 ] && [ "$bad" -eq 0 ]; then
        bad=1
    fi
    [ "$rc" -eq 124 ] || [ "$rc" -eq 137 ] && why+="ran longer than $limit s; "
    [ "$rc" -gt 128 ] && [ "$rc" -ne 137 ] && why+="ended by signal $((rc - 128)); "
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))
    printf '%-40s %4d passed %3d failed %3d skipped %4d s\n' "$name" "$ok" "$bad" "$skip" $((SECONDS - start))
    # The reason stands in the line itself, or (cmocka) in the line before it.
    [ "$skip" -gt 0 ] && awk '/# SKIP/ { if (before !~ /^(not )?ok |^1\.\./ && before != "") print "    " before
        print "    " $0 } { before = $0 }' "$log" | head -20
    if [ "$bad" -gt 0 ]; then
        echo "    ${why}exit status $rc; failures and the last lines:"
        grep -aE '^not ok ' "$log" | grep -v '# SKIP' | head -20 | sed 's/^/    /'
        tail -40 "$log" | sed 's/^/    | /'
    fi
}

for src in tests/*/test_*.c; do
    [ -e "$src" ] || continue
    name=${src#tests/} name=${name%.c}
    [[ $name =~ $pattern ]] || continue
    if [[ $name == *_emulated ]] && [ ! -e "$build/hcache_emulated" ]; then
        run_one "$name" echo "1..0 # SKIP no emulated GPU in this build: sanitizers do not follow its coroutines"
        continue
    fi
    run_one "$name" "$build/${src%.c}"
done
for script in tests/*/test_*.sh tests/*/test_*.py; do
    [ -e "$script" ] || continue
    name=${script#tests/}
    [[ $name =~ $pattern ]] || continue
    case $script in
    *.sh) run_one "$name" bash "$script" ;;
    *.py) run_one "$name" python3 "$script" ;;
    esac
done
finish
