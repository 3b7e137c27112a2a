# test_latent.sh - latent attention: one record a layer is K and V. After kill -9, by every kind of
# record and in truncated contexts, logits are those of a run that kept its state.
. tests/e2e/lib.sh

ids 200 7 | awk '{ for (i = 1; i <= NF; i++) printf "%d ", 3 + $i % 120 }' >"$tmp/ids"
numbers='[j["cached_tokens"], j["logits_digest"]]'

for family in deepseek-v2 glm4-lite; do
    model=tests/model/golden/families/$family
    latent() { run_hc run "$model" --ignore-eos --json --token-ids "$tmp/ids" --max-tokens 20 "$@"; }
    latent
    whole=$(json 'j["logits_digest"]')
    "$hc" run "$model" --ignore-eos --token-ids "$tmp/ids" --max-tokens 100000 --save both \
        --truncate 0.25,context=256 --store "$tmp/$family" >/dev/null 2>&1 &
    pid=$!
    for ((n = 0; n < PATIENCE * 100; n++)); do
        used=$("$hc" store stat "$tmp/$family" --json 2>/dev/null | python3 -c 'import json,sys; print(json.load(sys.stdin).get("chunks", 0))' 2>/dev/null)
        [ "${used:-0}" -ge 3 ] && break
        kill -0 $pid 2>/dev/null || break
    done
    kill -9 $pid 2>/dev/null
    wait $pid 2>/dev/null
    for plan in kv hidden auto; do
        latent --store "$tmp/$family" --plan $plan
        check "$family after kill -9, by $plan: the same logits" json_is "$numbers" "192 $whole"
    done
    bytes=$("$hc" model info "$model" --json | python3 -c 'import json,sys; print(192 * json.load(sys.stdin)["kv_bytes_per_token"])')
    latent --store "$tmp/$family" --plan kv --pack off
    check "$family: K and V are one record" json_is 'j["restored_bytes"]' "$bytes"
    run_hc profile "$model" --store memory --out "$tmp/platform"
    run_hc plan "$model" --platform "$tmp/platform" --history 192
    check "$family: a plan with the model's own profile" test "$rc" -eq 0

    truncated() {
        run_hc run "$model" --ignore-eos --json --truncate 0.25,context=256 --token-ids "$tmp/ids" --max-tokens 300 "$@"
    }
    truncated
    whole=$(json 'j["logits_digest"]')
    truncated --store "$tmp/$family.t"
    python3 -c 'import json,sys; j=json.load(open(sys.argv[1])); print(*j["token_ids"][:290])' "$tmp/out" >"$tmp/answer"
    cat "$tmp/ids" "$tmp/answer" | tr '\n' ' ' >"$tmp/all"
    longer() {
        run_hc run "$model" --ignore-eos --json --truncate 0.25,context=256 --token-ids "$tmp/all" --max-tokens 10 "$@"
    }
    longer
    whole=$(json 'j["logits_digest"]')
    longer --store "$tmp/$family.t"
    check "$family past its window, from disk: the same logits" json_is "$numbers" "448 $whole"
done
plan_end
