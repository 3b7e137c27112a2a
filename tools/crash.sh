#!/usr/bin/env bash
# Runs the crash campaign and prints one table of its cases (docs/TESTING.md).
#   tools/crash.sh BUILD [short|long]     short: under 3 minutes; long: hours
# Fuzzing runs separately (LOG=1 make fuzz); the table has the sums of its log over all sessions.
# Each part writes its counts, one "name: number" per line, into BUILD/crash/; equal names are added
# up.
set -uo pipefail
cd "$(dirname "$0")/.."
build=${1:?build folder}
size=${2:-short}
out=$build/crash
mkdir -p "$out"
rm -f "$out"/*.counts "$out"/*.log
export HCACHE_BUILD=$build

if [ "$size" = long ]; then
    images=50000 flips=20000 cycles=1000 seconds=36000 cases=1000 lives=1000000
    soak=3600 soak_dram=64M soak_disk=1G soak_contexts=600
else
    images=5000 flips=5000 cycles=20 seconds=45 cases=3 lives=10000
    soak=20 soak_dram=4M soak_disk=24M soak_contexts=24
fi

failed=0
part() { # part NAME COMMAND...
    local name=$1 start=$SECONDS
    shift
    if HCACHE_CAMPAIGN_OUT=$out/$name.counts env "$@" >"$out/$name.log" 2>&1; then
        printf 'crash: %-12s ok    (%d s)\n' "$name" $((SECONDS - start)) >&2
    else
        printf 'crash: %-12s FAIL  (%d s), see %s\n' "$name" $((SECONDS - start)) "$out/$name.log" >&2
        grep -E '^(ERROR|not ok|#)' "$out/$name.log" | head -10 | sed 's/^/    /' >&2
        failed=1
    fi
}

# The tests with real processes wait more than they compute, so they run beside the simulation.
{
    part syscalls SYSCALL_CASES=$cases python3 tests/e2e/test_store_syscalls.py
    part soak SOAK_SECONDS=$soak SOAK_DRAM=$soak_dram SOAK_DISK=$soak_disk SOAK_CONTEXTS=$soak_contexts \
        python3 tests/e2e/test_soak.py
    part kill KILL_CYCLES=$cycles KILL_SECONDS=$seconds python3 tests/e2e/test_kill_server.py
    exit $failed
} &
part images HCACHE_CAMPAIGN=$images "$build/tests/store/test_campaign"
part damage HCACHE_FLIPS=$flips "$build/tests/store/test_damage"
part bits HCACHE_BITS=all "$build/tests/store/test_bits"
part bugs "$build/tests/store/test_crash" # the seeded bugs must be caught
part bounds "$build/tests/store/test_parts"
part memory HCACHE_MEMORY=all "$build/tests/restore/test_life_memory" # each allocation fails
part lives HCACHE_LIVES=$lives "$build/tests/restore/test_lives" # threads under a seed
wait $! || failed=1

echo
echo "crash campaign, $size, $(date -u +%F), $(git describe --always --dirty 2>/dev/null || echo 'no git')"
counts=()
for name in images damage bits kill syscalls soak lives; do
    [ -s "$out/$name.counts" ] && counts+=("$out/$name.counts")
done
row='  %-48s %12s\n'
awk -F': ' -v row="$row" '$1 !~ /^(contexts lost|wrong bytes)/ { if (!($1 in n)) order[++k] = $1; n[$1] += $2 }
    END { for (i = 1; i <= k; i++) printf row, order[i], n[order[i]] }' "${counts[@]}"
for target in tests/fuzz/corpus/*/; do
    name=$(basename "$target")
    printf "$row" "fuzz executions, $name" \
        "$(awk -F, -v t="$name" '$3 == t { n += $4 } END { printf "%d", n }' tests/fuzz/executions.csv)"
done
for what in "contexts lost" "wrong bytes served"; do
    printf "$row" "$what" "$(awk -F': ' -v w="$what" '$1 == w { n += $2 } END { printf "%d", n }' "${counts[@]}")"
done
caught=$(cat "$out"/*.log | grep -v 'NOT CAUGHT' | sed -n 's/: caught.*//p' | sort -u | wc -l) # some in several stores
printf "$row" "seeded bugs caught" "$caught/9"
[ "$caught" -eq 9 ] || failed=1
exit $failed
