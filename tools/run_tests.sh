#!/usr/bin/env bash
# Runs every test under tests/ and closes with one line: N passed, N failed, N skipped.
#   tools/run_tests.sh BUILD_DIR        TESTS=pattern limits which (a regular expression on paths)
# C tests are cmocka programs (TAP output); tests/e2e/*.sh and *.py print TAP themselves.
set -uo pipefail

build=$1
pattern=${TESTS:-.}
export HCACHE_BUILD=$build
passed=0 failed=0 skipped=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

run_one() { # run_one NAME COMMAND...
    local name=$1 start=$SECONDS rc ok bad skip
    shift
    CMOCKA_MESSAGE_OUTPUT=TAP timeout "${TEST_TIMEOUT:-600}" "$@" >"$log" 2>&1 </dev/null
    rc=$?
    # cmocka 1.1 prints a skip as "ok N # SKIP name" or "not ok N # SKIP name".
    skip=$(grep -cE '^(not )?ok .*# SKIP' "$log")
    ok=$(grep -E '^ok ' "$log" | grep -vc '# SKIP')
    bad=$(grep -E '^not ok ' "$log" | grep -vc '# SKIP')
    if [ "$rc" -ne 0 ] && [ "$bad" -eq 0 ]; then bad=1; fi
    if [ "$rc" -eq 0 ] && [ $((ok + bad + skip)) -eq 0 ]; then bad=1; echo "printed no result" >>"$log"; fi
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))
    printf '%-42s %4d passed %3d failed %3d skipped %4d s\n' "$name" "$ok" "$bad" "$skip" $((SECONDS - start))
    [ "$skip" -gt 0 ] && grep -iE 'SKIP' "$log" | sed 's/^/    /' | head -5
    if [ "$bad" -gt 0 ]; then echo "    exit status $rc; the last lines:"; tail -40 "$log" | sed 's/^/    /'; fi
    return 0
}

for src in tests/*/test_*.c; do
    name=${src#tests/}; name=${name%.c}
    [[ $name =~ $pattern ]] || continue
    run_one "$name" "$build/${src%.c}"
done
for script in tests/e2e/test_*.sh tests/e2e/test_*.py; do
    [ -e "$script" ] || continue
    name=${script#tests/}
    [[ $name =~ $pattern ]] || continue
    case $script in
    *.sh) run_one "$name" bash "$script" ;;
    *.py) run_one "$name" python3 "$script" ;;
    esac
done

echo "whole run: $SECONDS s"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ $((passed + failed)) -gt 0 ]
