#!/usr/bin/env bash
# Looks for inputs that break a parser: runs each target of tests/fuzz for the given time, starting
# from the corpus, from recorded bodies, and from inputs that earlier runs found (build/fuzz/found). Ends with a table. An
# input that breaks a parser is left in build/fuzz/broken and makes the run fail.
#   tools/fuzz.sh SECONDS [PATTERN]
#   LOG=1 tools/fuzz.sh ...     adds the counts to tests/fuzz/executions.csv, and prints the sums over all sessions
#   UNTIL=N tools/fuzz.sh ...   each target runs only until the sum of its executions is N
#   BYTES=N tools/fuzz.sh ...   inputs of up to N bytes (8192)
#   MERGE=1 tools/fuzz.sh ...   afterwards adds small inputs that reach new code to the corpus, up to 30 in all
# An input counts as slow if it takes 200 s; with a lower limit, every input is slow on a machine
# that stands still for a minute.
set -uo pipefail
cd "$(dirname "$0")/.."
seconds=${1:?usage: fuzz.sh SECONDS [PATTERN]} pattern=${2:-.}
program=build/fuzz/fuzz found=build/fuzz/found broken=build/fuzz/broken
mkdir -p "$found" "$broken"
# Bodies that tests/server sends are seeds of the target `request`.
seeds=build/fuzz/seeds
mkdir -p "$seeds/request"
awk -v to="$seeds/request/" '/^POST / { is_body = 1; next } is_body && /^[{]/ { file = to n++; print > file; close(file) } { is_body = 0 }' tests/server/golden/*.txt
table="target executions features inputs"
failed=0

# Freed memory is reused after 1 MiB instead of 256, and no stack is recorded for allocations: both
# take more time than the parsers.  Inputs that break a parser are run again without these options.
export ASAN_OPTIONS=quarantine_size_mb=1:malloc_context_size=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}

count() { find "$@" -type f | wc -l; }
executed() { awk -F, -v target="$1" '$3 == target { n += $4 } END { print n + 0 }' tests/fuzz/executions.csv; }

for corpus in tests/fuzz/corpus/*/; do
    name=$(basename "$corpus")
    [[ $name =~ $pattern ]] || continue
    runs=-1
    if [ -n "${UNTIL:-}" ]; then
        runs=$((UNTIL - $(executed "$name")))
        [ "$runs" -gt 0 ] || continue
    fi
    mkdir -p "$found/$name"
    more=()
    [ ! -d "$seeds/$name" ] || more=("$seeds/$name")
    log=$found/$name.log start=$SECONDS
    if ! HCACHE_FUZZ=$name "$program" -max_total_time="$seconds" -runs="$runs" -timeout=200 -rss_limit_mb=2048 -max_len="${BYTES:-8192}" \
        -artifact_prefix="$broken/$name-" -print_final_stats=1 "$found/$name" "$corpus" "${more[@]}" >"$log" 2>&1; then
        failed=1
        echo "$name is broken:"
        grep -aE 'ERROR|SUMMARY|does not hold|Test unit written|runtime error' "$log" | head -5
    fi
    n=$(grep -a 'stat::number_of_executed_units' "$log" | grep -oE '[0-9]+$' | tail -1)
    [ -n "${LOG:-}" ] && [ -n "$n" ] &&
        echo "$(date -u +%F),$(git rev-parse --short HEAD),$name,$n,$((SECONDS - start))" >>tests/fuzz/executions.csv
    features=$(grep -aoE 'ft: [0-9]+' "$log" | tail -1 | cut -c5-)
    table+=$'\n'"$name ${n:-?} ${features:-?} $(count "$found/$name" "$corpus")"
    [ -n "${MERGE:-}" ] || continue
    room=$((30 - $(count "$corpus")))
    new=$(mktemp -d)
    find "$found/$name" -type f -size -3k -exec cp -t "$new" {} +
    HCACHE_FUZZ=$name "$program" -merge=1 -max_len=3000 "$corpus" "$new" >/dev/null 2>&1
    rm -r "$new"
    find "$corpus" -type f -newer "$log" | tail -n "+$((room > 0 ? room + 1 : 1))" | xargs -r rm
done
column -t <<<"$table"
[ -n "${LOG:-}" ] && awk -F, 'NR > 1 { n[$3] += $4 } END { for (t in n) print "all sessions:", t, n[t] }' tests/fuzz/executions.csv | sort
exit $failed
