#!/usr/bin/env bash
# Shows the main feature on the terminal, in at most half a minute: a conversation is computed, its
# process is killed in mid-sentence, and another process continues from the state on disk.  The
# figures come first, then the conversation.
#   DEMO_MODEL=...  another model: a GGUF file (make demo-real: SmolLM2), synth:SHAPE
#                   (default: models/demo if it exists, otherwise a synthetic one)
#   DEMO_DIR=...    the directory for the store, to try a certain disk (default: a temporary one)
set -euo pipefail
cd "$(dirname "$0")/.."

hc=${HCACHE_BUILD:-build}/hcache
tmp=$(mktemp -d "${DEMO_DIR:-${TMPDIR:-/tmp}}/hcache-demo.XXXXXX")
store=$tmp/store
victim=
cleanup() {
    [ -z "$victim" ] || kill -9 "$victim" 2>/dev/null || true
    rm -rf "$tmp"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

bold= plain=
[ -t 1 ] && bold=$'\e[1m' plain=$'\e[0m'
say() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
die() {  # die also prints the work that was done until then
    doing ""
    [ ! -e "$tmp/story" ] || cat "$tmp/story" >&2
    echo "demo: $*" >&2
    exit 1
}
# line WHO TEXT: prints a line of the chat
line() { printf '%s%s%s %s\n' "$bold" "$1" "$plain" "$2" | fold -s -w 100; }
# Shows the present step on stderr, if that is a terminal.
doing() { [ ! -t 2 ] || printf '\r\e[K%s' "${1:+$1 ...}" >&2; }

model=${DEMO_MODEL:-}
if [ -z "$model" ]; then
    model=synth:bench-220m
    [ -e models/demo/model.safetensors ] && model=models/demo
fi

# Returns whether the store has state on disk.  It may be read while a process uses it.
has_state() { "$hc" store stat "$store" 2>/dev/null | grep -c '^[1-9][0-9]* chunks' >"$tmp/n_stores"; }

# run_and_kill ARGS...: starts hcache run. Kills it when it has printed some of its answer and saved
# some state, and $linger seconds have passed. A long prompt needs the seconds, so that more of it
# is saved; without them, a short answer has not ended yet.
linger=0
run_and_kill() {
    "$hc" run "$model" "$@" --store "$store" >"$tmp/killed.out" 2>"$tmp/killed.err" &
    victim=$!
    local waited=0
    while { [ "$(wc -c <"$tmp/killed.out")" -lt 60 ] || ! has_state; } && kill -0 "$victim" 2>/dev/null && [ $waited -lt 1800 ]; do
        sleep 0.05
        waited=$((waited + 1))
    done
    sleep "$linger"
    kill -0 "$victim" 2>/dev/null || { cat "$tmp/killed.err" >&2; die "the process ended before it could be killed"; }
    { kill -9 "$victim" && wait "$victim"; } 2>/dev/null || true
    victim=
}

# answer FILE ARGS...: makes one complete run; FILE gets its JSON.
answer() {
    local file=$1
    shift
    "$hc" run "$model" "$@" --temperature 0 --json >"$file" 2>"$tmp/run.err" ||
        { cat "$tmp/run.err" >&2; die "hcache run failed"; }
}

# both ARGS...: makes the same run with and without the store, three times alternately. Other
# programs on the machine disturb single timings, so the quickest run of each kind is compared.
both() {
    local i
    for i in 1 2 3; do
        answer "$tmp/restored$i.json" --store "$store" --save none "$@"
        answer "$tmp/recomputed$i.json" "$@"
    done
}

compare() {
    python3 - "$tmp" <<'PYTHON'
import json, sys
with_store, without = ([json.load(open(f"{sys.argv[1]}/{kind}{i}.json")) for i in (1, 2, 3)]
                       for kind in ("restored", "recomputed"))
outputs = {(*r["token_ids"], r["logits_digest"]) for r in with_store + without}
a, b = (min(runs, key=lambda r: r["timings"]["ttft_ms"]) for runs in (with_store, without))
t, u, plan = a["timings"], b["timings"], a["plan"]
same = len(outputs) == 1
print(f"""  first token after   {t['ttft_ms']:.1f} ms from the saved state, {u['ttft_ms']:.1f} ms when all is computed again: {u['ttft_ms'] / max(t['ttft_ms'], 1e-3):.1f} times as long
  output              {'identical: the same tokens, and the same logits bit for bit' if same else 'DIFFERENT: this is a bug'}
  tokens restored     {a['cached_tokens']} of {a['prompt_tokens']}, {a['restored_bytes']:,} bytes read in {t['lookup_ms'] + t['restore_ms']:.1f} ms
  plan, per layer     {plan['layers']} (R recomputed, H from hidden states, K from keys and values)
                      (each time is the quickest of three runs)""")
sys.exit(0 if same and a["cached_tokens"] > 0 else 1)
PYTHON
}

show_store() { "$hc" store stat "$store" || die "the store cannot be read"; }

# --- a trained model: a chat ----------------------------------------------------------------------

# A chat is a list of messages in chat.json. Every answer comes from a new process, which finds the
# state that earlier processes have saved.
chat() { python3 "$tmp/chat.py" "$@"; }
write_chat_py() {
    cat >"$tmp/chat.py" <<'PYTHON'
"""chat.py ask TEXT | keep FILE | drop: the conversation so far is chat.json beside this file."""
import json, os, sys

here = os.path.dirname(os.path.abspath(__file__))
path, prompt = os.path.join(here, "chat.json"), os.path.join(here, "prompt")
messages = json.load(open(path)) if os.path.exists(path) else []
what, args = sys.argv[1], sys.argv[2:]
if what == "ask":  # adds a user's line, and writes the prompt as the model's chat template does
    messages.append({"role": "user", "content": args[0]})
    text = "<|begin|>" + "".join(f"<|{m['role']}|>{m['content']}<|end|>" for m in messages) + "<|assistant|>"
    open(prompt, "w").write(text)
elif what == "keep":  # adds the answer to the chat and prints it
    text = json.load(open(args[0]))["text"].replace("<|end|>", "").strip()
    messages.append({"role": "assistant", "content": text})
    print(text)
elif what == "drop":  # removes the question that got no answer
    messages.pop()
json.dump(messages, open(path, "w"))
PYTHON
}

# say_answer FILE EXPECTED: prints the answer in FILE and checks that it contains EXPECTED.
say_answer() { # say_answer FILE EXPECTED
    local text
    text=$(chat keep "$1")
    line "model:" "$text"
    case $text in *"$2"*) ;; *) die "the model should have said \"$2\", and said: $text" ;; esac
}

# tools/demo_dialogue.txt has one line per turn: TEXT, or TEXT<tab>words that the answer must
# contain.
demo_chat() {
    local turns n turn text
    write_chat_py
    mapfile -t turns <tools/demo_dialogue.txt
    n=$((${#turns[@]} - 1))
    say "A chat with $model. Every answer comes from a new process; the store is all they share."
    for turn in "${turns[@]:0:n}"; do
        text=${turn%%$'\t'*}
        doing "answering: $text"
        chat ask "$text"
        answer "$tmp/turn.json" --raw --prompt-file "$tmp/prompt" --store "$store" --max-tokens 160
        line "  you:" "$text"
        say_answer "$tmp/turn.json" "$([ "$text" = "$turn" ] || echo "${turn#*$'\t'}")"
    done

    text="Tell me a story about a mole."
    doing "killing a process in mid-sentence"
    say "In mid-sentence the process is killed with SIGKILL."
    chat ask "$text"
    run_and_kill --raw --prompt-file "$tmp/prompt" --temperature 0 --max-tokens 300 --ignore-eos
    line "  you:" "$text"
    line "model:" "$(head -c 200 "$tmp/killed.out") ... [killed]"
    chat drop
    show_store

    text=${turns[n]%%$'\t'*}
    doing "restoring in another process"
    say "Another process is asked about the beginning of the conversation."
    chat ask "$text"
    line "  you:" "$text"
    both --raw --prompt-file "$tmp/prompt" --max-tokens 60
    say_answer "$tmp/restored1.json" "${turns[n]#*$'\t'}"
}

# --- a real model: questions about a document -----------------------------------------------------

# Prints paragraphs of this repository's own documentation, so that nothing has to be downloaded.
demo_document() {
    local pages text beginning
    # head reads the file itself. In a pipe, the program before head would be ended by SIGPIPE,
    # which ends this script.
    pages=$(head -c "${DEMO_BYTES:-7000}" docs/RESTORATION.md | sed -e 's/[`*|]//g' | iconv -c -f utf-8 -t utf-8)
    beginning=${pages:0:160}
    text=$(printf '%s\n\nSummarize this text.' "$pages")
    printf '%s' "$text" >"$tmp/first"
    printf '%s And which words does it explain?' "$text" >"$tmp/second"

    say "A process reads a long text and begins to answer; in mid-sentence it is killed with SIGKILL."
    doing "reading a long text, and killing the process"
    line "  you:" "${beginning//$'\n'/ } ... Summarize this text."
    linger=1
    run_and_kill --prompt-file "$tmp/first" --temperature 0 --max-tokens 1200 --ignore-eos
    line "model:" "$(head -c 200 "$tmp/killed.out") ... [killed]"
    show_store

    say "Another process gets the same text and another question."
    doing "restoring in another process, and computing all of it beside that"
    line "  you:" "... Summarize this text. And which words does it explain?"
    both --prompt-file "$tmp/second" --max-tokens 48
    line "model:" "$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["text"])' "$tmp/restored1.json")"
}

# --- a synthetic model: random tokens -------------------------------------------------------------

demo_synthetic() {
    local history=${DEMO_HISTORY:-1000}
    awk -v n="$history" 'BEGIN { s = 7; for (i = 0; i < n; i++) { s = (s * 1103515245 + 12345) % 2147483648
        printf "%d ", 3 + int(s / 65536) % 500 } }' >"$tmp/conversation"
    { cat "$tmp/conversation" && echo 17 4 212 9 33 101 76 5; } >"$tmp/question"
    echo "(No trained model is here: $model has random weights, and its conversation is $history random tokens.)"

    doing "computing a conversation, and killing its process"
    say "A process gets a long conversation and begins to answer; in mid-sentence it is killed with SIGKILL."
    echo "\$ hcache run $model --token-ids CONVERSATION --store STORE"
    linger=1
    run_and_kill --token-ids "$tmp/conversation" --max-tokens 900 --ignore-eos
    echo "$(head -c 60 "$tmp/killed.out") ... [killed]"
    show_store

    doing "restoring in another process"
    say "Another process gets the same conversation and a question."
    echo "\$ hcache run $model --token-ids CONVERSATION+QUESTION --store STORE --max-tokens 16"
    both --token-ids "$tmp/question" --max-tokens 16 --ignore-eos
}

case $model in
synth:*) demo_synthetic >"$tmp/story" ;;
*.gguf) demo_document >"$tmp/story" ;;
*) demo_chat >"$tmp/story" ;;
esac
doing ""
say "A conversation was killed with SIGKILL, and went on in another process:"
compare
cat "$tmp/story"
echo
echo "demo: $SECONDS s"
