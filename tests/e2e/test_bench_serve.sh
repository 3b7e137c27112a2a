# test_bench_serve.sh - `hcache bench serve` against `hcache serve`: every workload, its output
# files, and its errors.
. tests/e2e/lib.sh

"$hc" serve models/demo --port 0 --store "$tmp/store" >"$tmp/serve.log" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null; wait $server 2>/dev/null; cleanup' EXIT
port=$(port_of "$server" "$tmp/serve.log")
load=(bench serve --url "http://127.0.0.1:$port" --seconds 3 --drain 300)

run_hc "${load[@]}" --rate 60 --token-scale 0.05 --time-scale 0.01 --csv "$tmp/chats.csv" --html "$tmp/chats.html"
check "chats: all are answered" grep -qE '([0-9]+) requests sent, \1 answered, 0 failed, 0 not in time' "$tmp/out"
check "chats: a line for each request, all with status 200" \
    test "$(tail -n +2 "$tmp/chats.csv" | grep -c ',200$')" -eq "$(tail -n +2 "$tmp/chats.csv" | wc -l)"
check "chats: later turns are there" grep -qE '^server,[0-9]+,[1-9]' "$tmp/chats.csv"
check "chats: a page that loads nothing" grep -q '<svg' "$tmp/chats.html"
check "chats: nothing from elsewhere" test "$(grep -cE 'src=|<script|<link' "$tmp/chats.html")" -eq 0
run_hc "${load[@]}" --rate 60 --token-scale 0.05 --time-scale 0.01 --pid "$server"
if [ -e "/proc/$server/task/$server/schedstat" ]; then
    check "what the server's threads take for a token" \
        grep -qE 'us a generated token:( hcache [0-9.]*[1-9].* http [0-9.]*[1-9]| http [0-9.]*[1-9].* hcache [0-9.]*[1-9])' "$tmp/out"
else
    expect "a kernel that does not count threads' time" 1 'does not report processor time'
fi
run_hc "${load[@]}" --pid 2147483646
expect "no such process" 1 'process 2147483646: No such file'
run_hc "${load[@]}" --workload documents --documents 2 --rate 120 --token-scale 0.05
check "documents: asked for again, they are not computed again" \
    grep -qE '([2-9][0-9]|[0-9]{2})\.[0-9] % of them not computed' "$tmp/out"
printf '%s\n' '{"timestamp": 0, "input_length": 900, "output_length": 5, "hash_ids": [0, 1]}' \
    '{"timestamp": 1000, "input_length": 900, "output_length": 5, "hash_ids": [0, 2]}' >"$tmp/mooncake.jsonl"
run_hc "${load[@]}" --workload trace --trace "$tmp/mooncake.jsonl" --rate 0 --time-scale 1
check "a Mooncake trace" grep -q '2 requests sent, 2 answered' "$tmp/out"
printf 'TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,4\n2023-11-16 18:15:47.5,60,3\n' >"$tmp/azure.csv"
run_hc "${load[@]}" --workload trace --trace "$tmp/azure.csv" --rate 0 --time-scale 1
check "an Azure trace" grep -q '2 requests sent, 2 answered' "$tmp/out"
echo 'no,trace' >"$tmp/none.csv"
run_hc "${load[@]}" --workload trace --trace "$tmp/none.csv"
expect "another file: named with its line" 1 'none.csv:1: neither'
run_hc "${load[@]}" --workload trace
expect "a trace without a file" 2 'belong together'
kill $server
wait $server
run_hc "${load[@]}"
expect "no server: says so" 1 'first request failed'
plan_end
