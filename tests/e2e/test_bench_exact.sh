# test_bench_exact.sh - `hcache bench exact`: a correct server passes, and each fault of an
# incorrect server is counted.
. tests/e2e/lib.sh

pids=()
trap 'kill "${pids[@]}" 2>/dev/null; wait "${pids[@]}" 2>/dev/null; cleanup' EXIT
false_server() { # false_server FAULT: sets $url
    python3 tests/e2e/leaky_server.py "$1" >"$tmp/$1.url" &
    pids+=($!)
    for _ in $(seq 600); do
        [ -s "$tmp/$1.url" ] && break
        sleep 0.1
    done
    url=$(cat "$tmp/$1.url")
}
exact() { run_hc bench exact --url "$1" --conversations 12 --turns 6 --clients 4 --cancel 0 --json --check; }

false_server honest
exact "$url"
check "an honest server passes" test "$rc" -eq 0
check "an honest server: every turn of every conversation" json_is 'j["answers"]' 72
check "an honest server: nothing leaked, wrong or different" \
    json_is '[j["leaked"], j["wrong_context"], j["differs"], j["noise_floor"], j["errors"]] == [0, 0, 0, 0, 0]' True
false_server leaky
exact "$url"
check "a leak is a failure" test "$rc" -eq 1
check "a leak is counted, and differs" json_is 'j["leaked"] > 10 and j["differs"] >= j["leaked"]' True
false_server forgets
exact "$url"
check "a forgotten name is a failure" test "$rc" -eq 1
check "forgotten names are wrong contexts: all 36 questions" json_is '[j["wrong_context"], j["leaked"]] == [36, 0]' True
false_server noisy
exact "$url"
check "noise passes: cold runs differ as much" test "$rc" -eq 0
check "noise is counted as such" json_is '[j["noise_floor"], j["differs"], j["leaked"]] == [72, 72, 0]' True
rc=0
timeout -s INT 3 "$hc" bench exact --url "$url" --conversations 100000 --turns 6 --json >"$tmp/out" || rc=$?
out=$(cat "$tmp/out")
check "a run that is ended prints what it has counted" json_is 'j["ended_early"] and j["answers"] > 0' True
false_server refuses
seconds=$SECONDS
exact "$url"
check "a refusal is not sent again" json_is '[j["errors"], j["answers"]] == [12, 0]' True
check "so it costs no patience" test $((SECONDS - seconds)) -lt 60

port=$(python3 tests/e2e/ports.py)
cat >"$tmp/start.sh" <<SH
# the port and the store are free only when all threads of the killed server are gone
if [ -s "$tmp/pid" ]; then
    pid=\$(cat "$tmp/pid")
    kill -9 "\$pid"
    # its first thread may end before the others
    while grep -qs '^State:[[:space:]]*[^ZX[:space:]]' "/proc/\$pid/status" ||
        [ "\$(ls "/proc/\$pid/task" 2>/dev/null | wc -l)" -gt 1 ]; do sleep 0.05; done
fi
"$hc" serve models/demo --port $port --store "$tmp/store" \
    --kv-tokens 4K --max-sequences 4 >>"$tmp/serve.log" 2>&1 &
echo \$! >"$tmp/pid"
SH
bash "$tmp/start.sh"
pids+=("$(cat "$tmp/pid")")
port_of "$(cat "$tmp/pid")" "$tmp/serve.log" >/dev/null
run_hc bench exact --url "http://127.0.0.1:$port" --conversations 8 --turns 6 --clients 4 \
    --restart-cmd "bash $tmp/start.sh" --restarts 1 --json --check
pids+=("$(cat "$tmp/pid")")
check "hcache under restarts, evictions and cancels passes" test "$rc" -eq 0
[ "$rc" -eq 0 ] || sed 's/^/# server: /' "$tmp/serve.log"
check "hcache: every answer is its cold run's" \
    json_is '[j["answers"], j["leaked"], j["wrong_context"], j["differs"], j["errors"], j["restarts"]] == [48, 0, 0, 0, 0, 1]' True
check "hcache: requests that the restart broke off are no errors" \
    json_is '[j["interrupted"] > 0, j["first_error"]] == [True, None]' True
run_hc bench exact --url http://127.0.0.1:9 --conversations 2 --turns 1 --clients 2 --patience 0
expect "no server: said" 1 'no request was answered'
plan_end
