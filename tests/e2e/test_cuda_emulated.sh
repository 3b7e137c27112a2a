# test_cuda_emulated.sh - the commands that measure, on the emulated GPU: their output and files.
# (The speed of an emulation means nothing and is not checked.)
. tests/e2e/lib.sh

hc=$PWD/$HCACHE_BUILD/hcache_emulated
[ -x "$hc" ] || skip_all "the emulated GPU is not built for this variant or processor"
model=tests/model/golden/families/llama
cuda=(--device cuda --dtype bf16)
ceilings='^ceilings of device cuda \(emulated GPU.*bf16 GEMM .* TFLOP/s, memory .* GB/s.*pinned copies up .* GB/s, down .* GB/s'

run_hc bench kernels "${cuda[@]}" --tokens 64 --width 256 --only decode --csv "$tmp/k.csv"
check "kernels: the ceilings first" grep -qE "$ceilings" "$tmp/out"
check "kernels: a row with its share" grep -qE '^decode +1 row at 63, 2 kv .* GB/s +[0-9.]+ of memory' "$tmp/out"
check "kernels: and in the CSV" grep -qE '^cuda,bf16,decode,"1 row at 63, 2 kv",' "$tmp/k.csv"
run_hc bench device "${cuda[@]}" --width 300
expect "device: a width that heads do not fill" 2 'multiple of 512'

run_hc bench restore "$model" "${cuda[@]}" --store memory --lengths 64,128 --rounds 1 --methods kv,hidden,auto,recompute --csv "$tmp/r.csv"
check "restore: the ceilings" grep -qE "$ceilings" "$tmp/out"
check "restore: a row per length and method" test "$rc" -eq 0 -a "$(wc -l <"$tmp/r.csv")" -eq 9
check "restore: each but what needs none has a floor below its time" \
    awk -F, 'NR > 1 && !($17 > 0 && $18 > 0 && $18 < 1) { exit 1 }' "$tmp/r.csv"
run_hc bench restore "$model" "${cuda[@]}" --lengths 64 --rounds 1 --methods hidden
check "restore: from files" test "$rc" -eq 0

run_hc bench save "$model" "${cuda[@]}" --store memory --batches 2 --steps 8 --rounds 1 --context 64 --csv "$tmp/s.csv"
check "save: off, save, off again; no direct writes" \
    test "$rc" -eq 0 -a "$(cut -d, -f2 "$tmp/s.csv" | paste -sd' ')" = "arm off save off2"
check "save: nothing was shed" test "$(tail -n +2 "$tmp/s.csv" | cut -d, -f12 | sort -u)" = 0

run_hc profile "$model" "${cuda[@]}" --store "$tmp/store"
check "profile: measures" test "$rc" -eq 0
check "profile: the ceilings, and what the projection and reading have of them" \
    grep -qE '^  projection: [0-9.]+ of the GEMM rate; store: [0-9.]+ of pinned copies up;' "$tmp/out"
"$hc" serve models/demo --device cuda --port 0 --threads 1 >"$tmp/serve.log" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null; wait $server 2>/dev/null; cleanup' EXIT
port=$(port_of "$server" "$tmp/serve.log")
printf '%s\n' '{"timestamp": 0, "input_length": 20, "output_length": 3, "hash_ids": [0]}' >"$tmp/one.jsonl"
run_hc bench serve --url "http://127.0.0.1:$port" --workload trace --trace "$tmp/one.jsonl" --rate 0 --token-scale 1 --seconds 1 --drain 300
check "serve: a request is answered" grep -q '1 requests sent, 1 answered, 0 failed' "$tmp/out"
plan_end
