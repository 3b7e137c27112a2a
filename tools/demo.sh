#!/usr/bin/env bash
# The main job on the terminal, in under two minutes: a conversation is computed, its process is
# killed in mid-sentence, and another process goes on from the state on disk.
#   DEMO_MODEL=...  another model (default: models/demo where it is there, else a synthetic one)
#   DEMO_DIR=...    where the store is put, to try a certain disk (default: a temporary folder)
set -euo pipefail
cd "$(dirname "$0")/.."

hc=build/hcache
tmp=$(mktemp -d "${DEMO_DIR:-${TMPDIR:-/tmp}}/hcache-demo.XXXXXX")
victim=
cleanup() {
    [ -n "$victim" ] && kill -9 "$victim" 2>/dev/null
    rm -rf "$tmp"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

bold= plain=
[ -t 1 ] && bold=$'\e[1m' plain=$'\e[0m'
say() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
die() { echo "demo: $*" >&2; exit 1; }
json() { python3 -c "import json,sys; j=json.load(open(sys.argv[1])); print($2)" "$1"; } # json FILE EXPRESSION

model=${DEMO_MODEL:-}
if [ -z "$model" ]; then
    model=synth:bench-220m
    [ -e models/demo/config.json ] && model=models/demo
fi
store=$tmp/store
prompt=$tmp/conversation
question=$tmp/question
gen=(--temperature 0 --json)

case $model in
synth:*)
    # Random weights say nothing readable, so the conversation is made of random token ids.
    history=${DEMO_HISTORY:-1200}
    awk -v n="$history" 'BEGIN { s = 7; for (i = 0; i < n; i++) { s = (s * 1103515245 + 12345) % 2147483648; printf "%d ", 3 + int(s / 65536) % 500 } }' >"$prompt"
    { cat "$prompt"; echo "17 4 212 9 33 101 76 5"; } >"$question"
    input=--token-ids
    gen+=(--ignore-eos)
    ;;
*) die "the demo for trained models is not written yet" ;;
esac

say "1. A process is told a long conversation, and begins to answer."
echo "\$ hcache run $model $input CONVERSATION --store STORE --max-tokens 500"
"$hc" run "$model" $input "$prompt" --store "$store" --max-tokens 500 "${gen[@]}" >"$tmp/first.json" 2>"$tmp/first.err" &
victim=$!
# What is durable can be seen from outside: the index's commits. Wait until they cease to grow fast,
# which is when the prompt is saved and the answer is being generated.
waited=0 last=-1 quiet=0
while kill -0 "$victim" 2>/dev/null && [ $waited -lt 900 ] && [ $quiet -lt 3 ]; do
    sleep 0.1
    waited=$((waited + 1))
    now=$(du -sk "$store" 2>/dev/null | cut -f1)
    now=${now:-0}
    if [ "$now" -gt 100 ] && [ "$now" -eq "$last" ]; then quiet=$((quiet + 1)); else quiet=0; fi
    last=$now
done
kill -0 "$victim" 2>/dev/null || { cat "$tmp/first.err" >&2; die "the first process ended before it could be killed"; }
kill -9 "$victim"
wait "$victim" 2>/dev/null || true
victim=
say "2. It is killed with SIGKILL in mid-answer.  What it had reported as saved is on disk:"
"$hc" store stat "$store" || die "the store cannot be read"

say "3. A second process gets the same conversation and a question."
echo "\$ hcache run $model $input CONVERSATION+QUESTION --store STORE --max-tokens 24"
"$hc" run "$model" $input "$question" --store "$store" --max-tokens 24 "${gen[@]}" >"$tmp/restored.json" || die "the second run failed"

say "4. To compare: the same question without the store; everything is computed again."
echo "\$ hcache run $model $input CONVERSATION+QUESTION --max-tokens 24"
"$hc" run "$model" $input "$question" --max-tokens 24 "${gen[@]}" >"$tmp/recomputed.json" || die "the run without a store failed"

python3 - "$tmp/restored.json" "$tmp/recomputed.json" <<'PYTHON'
import json, sys
a, b = (json.load(open(f)) for f in sys.argv[1:3])
t, u, plan = a["timings"], b["timings"], a["plan"]
same = a["token_ids"] == b["token_ids"] and a["logits_digest"] == b["logits_digest"]
back = t["lookup_ms"] + t["restore_ms"]
print(f"""
  tokens restored      {a['cached_tokens']} of {a['prompt_tokens']}
  bytes read           {a.get('restored_bytes', 0):,}
  plan                 {plan['layers']}  (R recomputed, H from hidden states, K from keys and values)
  because              {plan['reason']}
  restoring took       {back:.1f} ms (predicted {plan['predicted_ms']:.1f} ms)
  first token after    {t['ttft_ms']:.1f} ms; without the store {u['ttft_ms']:.1f} ms: {u['ttft_ms'] / max(t['ttft_ms'], 1e-3):.1f} times longer
  output               {'identical: the same tokens and the same logits, bit for bit' if same else 'DIFFERENT'}
""")
sys.exit(0 if same and a["cached_tokens"] > 0 else 1)
PYTHON
echo "demo: $SECONDS s"
