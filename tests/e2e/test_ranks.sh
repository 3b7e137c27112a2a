# test_ranks.sh - a model shared over ranks and stages of one process: the same logits, clear error
# messages.
. tests/e2e/lib.sh

ids 200 3 >"$tmp/ids"
run_ranks() { # run_ranks N ARGS...
    local n=$1
    shift
    run_hc run synth:tiny-mha --dtype f32 --tensor-parallel "$n" --token-ids "$tmp/ids" --max-tokens 20 --ignore-eos --json "$@"
}

run_ranks 1
digest=$(json 'j["logits_digest"]')
for n in 2 4; do
    run_ranks "$n"
    check "$n ranks: the logits of one, bit for bit" json_is 'j["logits_digest"]' "$digest"
done
run_hc run synth:tiny-mha --dtype f32 --token-ids "$tmp/ids" --max-tokens 20 --ignore-eos --json --store "$tmp/one" --save both
for n in 2 3 4; do
    run_ranks 1 --pipeline-parallel "$n" --store "$tmp/one" --save none --plan RHKK
    check "$n stages restore what one device has saved" json_is 'j["cached_tokens"] >= 192' True
    check "$n stages: the same logits, bit for bit" json_is 'j["logits_digest"]' "$digest"
done
run_ranks 1 --pipeline-parallel 5
expect "5 stages for 4 layers: refused" 1 'the model has 4 layers'
run_ranks 8 --pipeline-parallel 4
expect "32 devices: refused" 2 'at most 16'
run_ranks 3
expect "3 ranks: refused, with the number that cannot be divided" 1 'heads, which cannot be divided by 3'
run_ranks 17
expect "17 ranks: refused" 2 'tensor-parallel.*16'

# The commands that measure also measure groups of devices.
group=(--tensor-parallel 2 --pipeline-parallel 2)
run_hc profile synth:tiny-mha "${group[@]}" --out "$tmp/group.platform"
check "profile: of two stages of two ranks" test "$rc" -eq 0 -a -s "$tmp/group.platform"
run_hc bench restore synth:tiny-mha "${group[@]}" --store memory --lengths 128 --rounds 1 --methods kv,hidden,recompute --csv "$tmp/r.csv"
check "bench restore: a row per method" test "$rc" -eq 0 -a "$(wc -l <"$tmp/r.csv")" -eq 4
check "and says what it runs on" grep -q 'over 2 stages, on each of 2 ranks' "$tmp/out"
run_hc bench save synth:tiny-mha "${group[@]}" --store memory --batches 2 --steps 8 --rounds 1 --context 64 --arms off,save --csv "$tmp/s.csv"
check "bench save: nothing was shed" test "$rc" -eq 0 -a "$(tail -n +2 "$tmp/s.csv" | cut -d, -f12 | sort -u)" = 0
for bench in device kernels; do
    run_hc bench "$bench" "${group[@]}" --width 256 --only '32 rows' --csv "$tmp/d.csv"
    check "bench $bench: what only a group has" test "$(tail -n +2 "$tmp/d.csv" | cut -d, -f3 | paste -sd' ')" = "all_gather cross"
done
run_hc bench restore synth:tiny-mha --pipeline-parallel 5 --store memory --lengths 64
expect "more stages than layers: refused there, too" 1 'the model has 4 layers'
plan_end
