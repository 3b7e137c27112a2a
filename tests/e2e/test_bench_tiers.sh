# test_bench_tiers.sh - `hcache bench tiers`: rows, pass criteria and files for a small trace with
# known hit rates.
. tests/e2e/lib.sh

# 200 requests of 4 blocks: a loop over 10 contexts, which fits in 40 blocks and not in 30.
python3 - >"$tmp/loop.jsonl" <<'EOF'
for i in range(200):
    ids = [4 * (i % 10) + k for k in range(4)]
    print('{"timestamp": %d, "input_length": 2048, "output_length": 10, "hash_ids": %s}' % (1000 * i, ids))
EOF
tiers=(bench tiers --load mooncake --trace "$tmp/loop.jsonl")
hits() { awk -v p="$1" -v b="$2" '$1 == p && $2 == b { print $3 }' "$tmp/out"; }

run_hc "${tiers[@]}" --policies lru,attentionstore,ours,belady --blocks 30,40 --csv "$tmp/t.csv" --page "$tmp/t.html"
check "it ends well" test "$rc" -eq 0
check "lru loses all of a loop that does not fit" test "$(hits lru 30)" = 0.00%
check "what fits hits from the second round on" test "$(hits lru 40)" = 95.00% -a "$(hits belady 40)" = 95.00%
check "belady keeps most of it" test "$(hits belady 30 | cut -d. -f1)" -ge 60
check "a row for each policy and size, in CSV too" test "$(grep -c ',' "$tmp/t.csv")" -ge 9
check "a page with pictures" grep -q '<svg' "$tmp/t.html"
run_hc "${tiers[@]}" --policies lru,attentionstore,ours --blocks 30 --window 8
check "whoever knows the next 8 requests keeps 7 contexts" test "$(hits lru 30)" = 0.00% -a "$(hits attentionstore 30 | cut -d. -f1)" -ge 50
run_hc "${tiers[@]}" --policies lru --blocks 40 --admit second-use
check "admission by second use loses a round" test "$(hits lru 40)" = 90.00%
run_hc "${tiers[@]}" --policies lru,ours --blocks 40 --json
check "JSON" python3 -c 'import json, sys; o = json.load(open(sys.argv[1])); sys.exit(o["requests"] != 200 or len(o["rows"]) != 2)' "$tmp/out"
run_hc "${tiers[@]}" --policies lru,best --blocks 40
expect "no such policy" 2 "'best' is not a policy"
run_hc bench tiers --load mooncake
expect "a trace is needed" 2 'needs --trace'
run_hc bench tiers --load closed --dram 2
expect "memory for less than a block" 2 '\-\-dram 2: a block of 64 tokens has [0-9]* bytes'
echo '{"timestamp": 1}' >"$tmp/bad.jsonl"
run_hc bench tiers --load mooncake --trace "$tmp/bad.jsonl"
expect "a line that is none" 1 'line 1'
run_hc "${tiers[@]}" --policies lru,attentionstore,ours --blocks 30 --window 8 --check
check "--check exits with 0 or 1 and says which gate" grep -q 'gate met\|GATE MISSED' "$tmp/out"
run_hc bench tiers --load closed --policies lru --figures 21 # the figure that takes least time
check "a figure has the paper's value, ours, and why they differ" \
    grep -q 'why they differ: the paper has 2 and 10 TB of KV only' "$tmp/out"
plan_end
