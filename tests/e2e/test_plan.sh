# test_plan.sh - hcache plan: its output for the paper's platforms, its files, and the errors it
# reports.
. tests/e2e/lib.sh

plan=(plan --shape llama-2-13b --platform a100-1ssd --history 1024)
run_hc "${plan[@]}"
check "the paper's 31 H + 9 RE" grep -qE '^paper +9 R \+ 31 H \+ 0 K ' "$tmp/out"
check "both lanes" test "$(grep -cE '^(I/O|compute) +[RHKrhk.]+ +[0-9]+ % busy$' "$tmp/out")" -eq 2
check "what is stored in KiB" grep -qE '^kv .* 800 KiB$' "$tmp/out"
run_hc "${plan[@]}" --svg "$tmp/plan.svg" --json
check "JSON on stdout, alone" json_is 'j["plan"]["recompute"] + j["plan"]["hidden"] + j["plan"]["kv"]' 40
check "and the SVG in its file" python3 -c 'import sys, xml.dom.minidom as m; assert m.parse(sys.argv[1]).getElementsByTagName("rect")' "$tmp/plan.svg"
run_hc plan --shape qwen3.6-35b-a3b --platform 4090-1ssd --history 8192
check "536 tokens of inputs weigh as much as a snapshot" grep -q 'the inputs of 536 tokens' "$tmp/out"
check "recurrent layers have no keys and values" grep -qE '^kv +0 R \+ 30 H \+ 10 K ' "$tmp/out"
run_hc "${plan[@]}" --throttle 2500000
check "a slow store in MB/s" grep -qE '1024 tokens from throttled at 2.5 MB/s$' "$tmp/out"
run_hc "${plan[@]}" --budget 1K --json
check "a budget bounds what is stored" json_is 'j["plan"]["stored_bytes_per_token"] <= 1024' True
COLUMNS=70 run_hc "${plan[@]}" --method RRRRRRRRRRRRHHHHHHHHHHHHHHHHHHHHHHHHHHHH
check "a forced plan has a row" grep -qE '^RRRRRRRRRRRRHHHHHHHHHHHHHHHHHHHHHHHHHHHH +12 R \+ 28 H \+ 0 K ' "$tmp/out"

COLUMNS=100 run_hc "${plan[@]}" --pipeline-parallel 4
check "four stages: one lane of I/O, a bus and a compute lane each" \
    test "$(grep -cE '^(I/O|bus [0-3]|comp [0-3]) +[RHKrhk.]+ +[0-9]+ % busy$' "$tmp/out")" -eq 9
check "which is said" grep -q 'over 4 stages of 1 rank$' "$tmp/out"
run_hc "${plan[@]}" --pipeline-parallel 4 --svg "$tmp/stages.svg" --json
check "and drawn" test "$(grep -c '>bus [0-3]</text>' "$tmp/stages.svg")" -eq 4
check "and in the JSON" json_is 'j["stages"], j["ranks"]' "(4, 1)"
run_hc plan --shape llama-2-13b --platform a100-dram --history 1024 --tensor-parallel 2 --pipeline-parallel 2
check "ranks gather hidden states that they bring up in shares" grep -qE '^to each stage: H [0-9.]+ ms \(4[0-9.]+ GB/s, gathered by its ranks\), KV ' "$tmp/out"
run_hc plan --shape llama-2-70b --platform a30-1ssd --tensor-parallel 4 --link 1250000000
check "on machines of their own a token waits for the link" grep -q '4 gathers a layer; the next token of an answer waits 16.624 ms' "$tmp/out"
run_hc plan --shape llama-2-70b --platform a30-1ssd --tensor-parallel 4 --link 1250000000 --json
check "and hidden states by what a link carries" json_is 'j["read_bytes_per_s"] < 1.7e9, j["gathers"]["per_layer"]' "(True, 4)"

refused() { # refused NAME RC PATTERN ARGS...
    local name=$1 code=$2 pattern=$3
    shift 3
    run_hc plan "$@"
    expect "$name" "$code" "$pattern"
}
refused "no model" 2 'needs MODEL_DIR or --shape'
refused "two models" 2 'MODEL_DIR or --shape, not both' synth:tiny-gqa --shape llama-2-7b
refused "no such shape" 1 "unknown shape 'nope'; known are:" --shape nope
refused "no such platform" 1 "no platform 'nope'; built in are" --shape llama-2-7b --platform nope
refused "history below 1" 2 'history.*out of bounds' --shape llama-2-7b --history 0
refused "a bandwidth that is no number" 2 'throttle.*not a size' --shape llama-2-7b --throttle nan
refused "a link for a measured platform" 2 'link: a measured' --link 1G --platform /dev/null
refused "a tier too many" 2 'the platform has 1' --shape llama-2-7b --tier 1
refused "a plan of other layers" 2 '8 letters for 32' --shape llama-2-7b --method RRRRRHHH
refused "recomputed layers that are no prefix" 2 'plan' --shape tiny-mha --method HR
refused "an SVG that cannot be written" 1 'none/plan.svg: No such file' --shape llama-2-7b --svg "$tmp/none/plan.svg"
refused "more stages than layers" 1 'has 4 layers, and each stage needs one' --shape tiny-mha --pipeline-parallel 5
refused "ranks that cannot share the heads" 1 'has 8 key/value heads, which cannot be divided by 16' --shape llama-3-8b --tensor-parallel 16
refused "without options and without a profile: how to get one" 2 'hcache profile MODEL_DIR. measure it first'
run_hc profile synth:tiny-mha --out "$tmp/one.platform"
refused "packed state on a machine of the paper" 2 "does not say how fast state is unpacked .give a file of hcache profile" --shape llama-2-7b --packed
run_hc plan
check "without options, after a profile: a plan for this machine" grep -qE '^auto +[0-9]+ R ' "$tmp/out"
check "which is said" grep -q "for this machine" "$tmp/err"
check "the same as with the profile's file" diff "$tmp/out" <("$hc" plan --platform "$tmp/one.platform")
refused "stages that were not measured" 1 'was measured with 1 stage of 1 rank' --platform "$tmp/one.platform" --pipeline-parallel 2
printf 'machine = m\nnonsense\n' >"$tmp/bad.platform"
refused "no platform file" 1 'bad.platform: platform: line 2 is not' --platform "$tmp/bad.platform"
run_hc plan models/demo
expect "a history longer than the model's context is planned, and said" 0 'models/demo was made for 2048 tokens; the plan is for [0-9]+'
run_hc plan models/demo --history 1024
check "one within it: nothing to say" test "$rc" -eq 0 -a -z "$err"
head -c 3000 docs/STATEFUL.md >"$tmp/text"
for pack in off auto; do # reads are so slow that auto packs
    turn=(run models/demo --prompt-file "$tmp/text" --max-tokens 4 --temperature 0 --ignore-eos --store "$tmp/$pack" --throttle 20M --json)
    run_hc "${turn[@]}" --pack $pack --save kv
    run_hc "${turn[@]}" --plan kv
    cp "$tmp/out" "$tmp/$pack.json"
done
check "packed state is restored to the same bits, from fewer bytes" python3 -c '
import json, sys
off, auto = (json.load(open(f)) for f in sys.argv[1:])
assert off["logits_digest"] == auto["logits_digest"] and off["cached_tokens"] == auto["cached_tokens"] > 1000
assert 0 < auto["restored_bytes"] < 0.9 * off["restored_bytes"]' "$tmp/off.json" "$tmp/auto.json"
plan_end
