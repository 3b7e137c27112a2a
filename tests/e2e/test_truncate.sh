# test_truncate.sh - a run continues past its window: in memory, from disk after a restart, and
# after kill -9 at any moment, with the same logits.  Refusals give the numbers.
. tests/e2e/lib.sh

model=models/demo
ids 200 7 >"$tmp/ids"
echo 5 6 7 8 >"$tmp/small"
truncated() { run_hc run "$model" --ignore-eos --json --truncate 0.25,context=256 "$@"; }
numbers='[j["truncated_tokens"], j["recomputed_tokens"]] + [j["truncation"][k] for k in ("context", "step", "keep", "steps")]'

truncated --token-ids "$tmp/ids" --max-tokens 500
check "without --store: the window moves in memory" json_is "$numbers" '448 0 256 64 64 7'
python3 -c 'import json,sys; j=json.load(open(sys.argv[1])); print(*j["token_ids"])' "$tmp/out" >"$tmp/answer"
cat "$tmp/ids" "$tmp/answer" >"$tmp/all"
tr '\n' ' ' <"$tmp/all" | cut -d' ' -f1-690 >"$tmp/most"

truncated --token-ids "$tmp/most" --max-tokens 11
whole=$(json 'j["logits_digest"]')
check "one long prompt gives the same tokens" \
    json_is '" ".join(map(str, j["token_ids"][:10]))' "$(cut -d' ' -f491-500 "$tmp/answer")"

truncated --token-ids "$tmp/ids" --max-tokens 500 --store "$tmp/store"
truncated --token-ids "$tmp/most" --max-tokens 11 --store "$tmp/store"
check "from disk, in another process: all full chunks" json_is 'j["cached_tokens"]' 640
check "from disk, in another process: the same logits" json_is 'j["logits_digest"]' "$whole"
truncated --token-ids "$tmp/most" --max-tokens 11 --store "$tmp/store" --plan recompute
check "recomputed: the stairs are replayed" json_is '[j["cached_tokens"], j["logits_digest"]]' "0 $whole"

# The run is killed while it decodes past its window. All state that was saved is right, and a later
# run uses it.
for i in 1 3 6; do
    rm -rf "$tmp/killed"
    "$hc" run "$model" --ignore-eos --truncate 0.25,context=256 --token-ids "$tmp/ids" --max-tokens 500 \
        --store "$tmp/killed" >/dev/null 2>&1 &
    pid=$!
    for ((n = 0; n < PATIENCE * 100; n++)); do # waits until some stair is stored
        used=$("$hc" store stat "$tmp/killed" --json 2>/dev/null | python3 -c 'import json,sys; print(json.load(sys.stdin).get("chunks", 0))' 2>/dev/null)
        [ "${used:-0}" -ge $((i + 2)) ] && break
        kill -0 $pid 2>/dev/null || break
    done
    kill -9 $pid 2>/dev/null
    wait $pid 2>/dev/null
    truncated --token-ids "$tmp/most" --max-tokens 11 --store "$tmp/killed"
    check "kill -9 with $((i + 2)) chunks stored or more: the same logits" json_is 'j["logits_digest"]' "$whole"
done

truncated --token-ids "$tmp/ids" --truncate 0.25,context=100
expect "a window that has no room for a step: 2, with the numbers" 2 'a context of 64 tokens is a step of 0'
truncated --token-ids "$tmp/ids" --truncate 0.5,context=256,keep=100
expect "a K that is no multiple of 64: 2, with the numbers" 2 'keep is 100; with a context of 256 and a step of 128'
for wrong in half 0 1 nan 0x.8 ' 0.5' 0.5, 0.5,0.25 0.5,keep=64,keep=128 keep=64 0.5,keep=0 0.5,step=64; do
    run_hc run "$model" --token-ids "$tmp/ids" --truncate "$wrong"
    expect "--truncate '$wrong': 2" 2 "truncate '$wrong'"
done
truncated --token-ids "$tmp/ids" --truncate 0.99,context=256
expect "a ratio that leaves no room to keep tokens: 2, with the numbers" 2 'a step of 192 has no room for 64 kept tokens'
truncated --token-ids "$tmp/ids" --truncate 0.5,context=4096
expect "a window beyond the model's: 2, with the numbers" 2 "the window is 4096 tokens, and the model's own context is 2048"
run_hc run tests/model/golden/families/opt --token-ids "$tmp/small" --truncate 0.5
expect "learned positions are refused by name" 1 'learned positions'
run_hc run tests/model/golden/families/mistral --token-ids "$tmp/small" --truncate 0.5
expect "sliding windows are refused by name" 1 'sliding window of'
run_hc run "$model" --token-ids "$tmp/ids" --max-context 256 --max-tokens 100
expect "without --truncate a full context is an error" 1 'maximum context length is 256'
plan_end
