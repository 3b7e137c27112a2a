# test_ppl.sh - perplexity, kept logits, and the divergence of 8-bit weights from the checkpoint's.
. tests/e2e/lib.sh

model=models/demo
for i in $(seq 60); do echo "My goat is called Saffron. What comes before June? The number of my platform is $i."; done >"$tmp/text"

run_hc ppl "$model" "$tmp/text" --context 128 --max-windows 4 --logits-out "$tmp/logits" --json
check "ppl: 63 of each window of 128 are scored" json_is 'j["tokens_scored"]' 252
check "a model of English beats chance" json_is 'j["perplexity"] < 3072' True
check "--logits-out: header, ids, a row for each" test "$(wc -c <"$tmp/logits")" -eq $((24 + 4 * 128 * 4 + 252 * 3072 * 4))
run_hc ppl "$model" "$tmp/text" --context 128 --max-windows 4 --kl-against "$tmp/logits" --json
check "the same weights: no divergence" json_is '[j["kl_divergence"], j["same_top"]]' '0.0 1.0'
run_hc ppl "$model" "$tmp/text" --context 128 --max-windows 4 --kl-against "$tmp/logits" --weights q8 --json
check "q8: a small divergence, not none" json_is '0 < j["kl_divergence"] < 0.06' True
check "q8: mostly the same best token" json_is 'j["same_top"] > 0.9' True
run_hc ppl "$model" "$tmp/text" --context 64 --max-windows 4 --kl-against "$tmp/logits"
expect "logits of other windows are refused" 1 'windows of 128'
tail -c +100 "$tmp/text" >"$tmp/text2"
run_hc ppl "$model" "$tmp/text2" --context 128 --max-windows 4 --kl-against "$tmp/logits"
expect "logits of another text are refused" 1 'another text'
run_hc ppl "$model" "$tmp/text" --context 128 --max-windows 4 --kl-against "$tmp/text"
expect "a file of something else is refused" 1 'not a file of logits'
truncate -s -100 "$tmp/logits"
run_hc ppl "$model" "$tmp/text" --context 128 --max-windows 4 --kl-against "$tmp/logits"
expect "a cut file is refused" 1 'ends after 251'
if [ -e /dev/full ]; then
    run_hc ppl "$model" "$tmp/text" --context 128 --max-windows 4 --logits-out /dev/full
    expect "--logits-out on a full disk: 1" 1 'No space left'
fi

# A text longer than the context.
overflow() { run_hc ppl "$model" "$tmp/text" --overflow "$@" --context 256 --max-tokens 900 --json; }
overflow decoupled
check "overflow: C, S, K, steps and scored tokens" \
    json_is '[j[k] for k in ("overflow", "context", "step", "keep", "tokens", "scored", "steps")]' \
    'decoupled 256 128 64 900 643 6'
check "overflow: nll and ppl agree" json_is 'abs(__import__("math").exp(j["nll"]) - j["ppl"]) < 1e-6' True
ppl=$(json 'j["ppl"]')
overflow recompute
check "decoupled is as good as recomputed" json_is "$ppl <= 1.05 * j['ppl']" True
overflow stale
check "stale rotations are worse" json_is "j['ppl'] > 1.5 * $ppl" True
overflow decoupled --keep 0
check "ppl alone may keep no token" json_is 'j["keep"]' 0
overflow decoupled --keep 100
expect "a K that is no multiple of 64: 2, with the numbers" 2 'keep is 100; with a context of 256 and a step of 128'
overflow decoupled --ratio 0.1
expect "a step below 64: 2, with the numbers" 2 'a step of 0; it must be at least 64'
run_hc ppl "$model" "$tmp/text" --overflow decoupled --context 256 --max-tokens 257
expect "a text that does not overflow: 2" 2 'at least 258 are needed'

run_hc run "$model" --prompt hello --max-tokens 4 --weights q3
expect "an unknown kind of weights: 2" 2 'checkpoint|q8'
run_hc ppl "$model" "$tmp/none"
check "no text: named once" test "$rc" -eq 1 -a "$(grep -o "$tmp/none" "$tmp/err" | wc -l)" -eq 1
plan_end
