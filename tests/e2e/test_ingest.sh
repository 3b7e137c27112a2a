# test_ingest.sh - `hcache ingest`: documents computed before their prompts, an ingestion that is
# killed and resumed, and a prompt that begins with a document.
. tests/e2e/lib.sh

# On a busy machine `auto` may find that computing is faster than reading. So every command takes a
# forced plan from this variable.
export HCACHE_PLAN=kv
model=models/demo
store=$tmp/store
# doc SEED WORDS: prints a text of WORDS words
doc() { awk -v s="$1" -v n="$2" 'BEGIN { split("river stone lamp the of tree cold open seven road light under paper green", w, " ");
    for (i = 0; i < n; i++) { s = (s * 1103515245 + 12345) % 2147483648; printf "%s%s", w[1 + int(s / 65536) % 14], i % 9 == 8 ? ". " : " " } }'; }
for i in 1 2 3 4 5 6; do doc "$i" 220 >"$tmp/doc$i.txt"; done
docs=("$tmp"/doc[1-6].txt)

run_hc ingest "$model" --store "$store" "$tmp/doc1.txt" --save both --json
check "a document is computed and durable" test "$rc" -eq 0 -a "$(json 'j["committed_tokens"] == j["tokens"] > 100')" = True
n=$(json 'j["tokens"]')
bytes_of() { run_hc store stat "$store" --json && json 'j["used_bytes"]'; }
before=$(bytes_of)
run_hc ingest "$model" --store "$store" "$tmp/doc1.txt" --save both --json
check "a second time it is found" test "$rc" -eq 0 -a "$(json 'j["cached_tokens"] >= (j["tokens"] - 1) // 64 * 64')" = True
check "and nothing is stored twice" test "$(bytes_of)" -eq "$before"

{ cat "$tmp/doc1.txt"; printf 'Question: which road?'; } >"$tmp/prompt.txt"
run_hc run "$model" --raw --prompt-file "$tmp/prompt.txt" --max-tokens 8 --ignore-eos --json
digest=$(json 'j["logits_digest"]')
for turn in first second; do
    run_hc run "$model" --raw --prompt-file "$tmp/prompt.txt" --max-tokens 8 --ignore-eos --store "$store" --save both --json
    check "the $turn prompt that begins with it restores it" test "$rc" -eq 0 -a "$(json "j['cached_tokens'] >= $n // 64 * 64")" = True
    check "bit for bit" json_is 'j["logits_digest"]' "$digest"
done

# Killed at several moments, ingest each time continues from the durable chunks.
done_tokens=0
for ms in 300 600 1200; do
    "$hc" ingest "$model" --store "$store" "${docs[@]}" --save both >"$tmp/out" 2>"$tmp/err" </dev/null &
    pid=$!
    sleep "$(awk -v m="$ms" 'BEGIN { print m / 1000 }')"
    kill -9 "$pid" 2>/dev/null
    wait "$pid" 2>/dev/null
    run_hc store stat "$store" --json
    check "killed after $ms ms: the store is sound, and no smaller" test "$rc" -eq 0 -a "$(json "j['tokens'] >= $done_tokens")" = True
    done_tokens=$(json 'j["tokens"]')
done
run_hc ingest "$model" --store "$store" "${docs[@]}" --save both --json
check "it goes on to the end" test "$rc" -eq 0 -a "$(json 'j["committed_tokens"] == j["tokens"]')" = True
check "from what was there" json_is 'j["files"][0]["cached_tokens"] > 0' True
run_hc ingest "$model" --store "$store" "${docs[@]}" --save both --json
check "then all is there" json_is 'all(f["cached_tokens"] >= (f["tokens"] - 1) // 64 * 64 for f in j["files"])' True
run_hc store verify "$store"
check "and sound" test "$rc" -eq 0

run_hc ingest "$model" --store "$store" "$tmp/none.txt"
expect "a file that is not there is named" 1 'none\.txt'
printf 'river \377' >"$tmp/latin.txt"
run_hc ingest "$model" --store "$store" "$tmp/none.txt" "$tmp/latin.txt" "$tmp/doc1.txt" --save both
expect "and one that is no text" 1 'latin\.txt.*UTF-8'
check "the others go on" grep -qE 'doc1\.txt: [0-9]+ tokens, [0-9]+ restored, [0-9]+ computed, all durable$' "$tmp/out"
check "and how many failed is said" grep -q '2 of 3 files are not stored as a whole' "$tmp/err"
run_hc ingest "$model" --store "$tmp/small" --store-cap 300K "$tmp/doc1.txt" --save both
expect "what does not fit under the cap is named with its reason" 1 'doc1\.txt: not completely stored: the cap of the store'
doc 7 3000 >"$tmp/long.txt"
run_hc ingest "$model" --store "$store" "$tmp/long.txt"
expect "a document that is longer than the context" 1 'long.txt: the prompt has [0-9]+ tokens, but the maximum context length is 2048$'
run_hc ingest "$model" --store memory "$tmp/doc1.txt"
expect "a store in memory is no place for it" 2 'give a folder'
# --- as a message of a chat -----------------------------------------------------------------------------

chat_store=$tmp/chat-store
run_hc ingest "$model" --store "$chat_store" --save both --chat system CONTRIBUTING.md --json
check "a document is ingested as a system's message" test "$rc" -eq 0
n_document=$(json 'j["tokens"]')
# the last chunk may contain tokens of text after the message
chunks=$((n_document / 64 * 64 - 64))
run_hc run "$model" --store "$chat_store" --save none --system "$(cat CONTRIBUTING.md; printf x)" --prompt "What is my name?" -n 4 --json
check "a message of another end shares what is before it" json_is "j['cached_tokens'] >= $chunks" True
python3 -c 'import sys; sys.stdout.write(open("CONTRIBUTING.md").read())' >"$tmp/document"
IFS= read -r -d '' document <"$tmp/document" || true
run_hc run "$model" --store "$chat_store" --save none --system "$document" --prompt "What is my name?" -n 4 --json
check "sent as a message, it is found" json_is "j['cached_tokens'] >= $chunks and j['cached_tokens'] > 200" True
run_hc ingest "$model" --store "$tmp/raw-store" --save both CONTRIBUTING.md --json
run_hc run "$model" --store "$tmp/raw-store" --save none --system "$document" --prompt "What is my name?" -n 4 --json
check "ingested as plain text it is not" json_is 'j["cached_tokens"]' 0
"$hc" serve "$model" --port 0 --store "$chat_store" --no-reuse >"$tmp/serve.log" 2>&1 &
server=$!
port=$(port_of "$server" "$tmp/serve.log")
python3 - "$port" >"$tmp/out" 2>"$tmp/err" <<'PYTHON'
import json, sys, urllib.request
messages = [{"role": "system", "content": open("CONTRIBUTING.md").read()}, {"role": "user", "content": "What is my name?"}]
def post(path, body):
    r = urllib.request.Request(f"http://127.0.0.1:{sys.argv[1]}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(r))
chat = post("/v1/chat/completions", {"messages": messages, "max_tokens": 4})
other = [{"role": "system", "content": open("CHANGELOG.md").read()[:2000]}]
ahead = post("/v1/cache/prefetch", {"messages": other})
after = post("/v1/chat/completions", {"messages": other + messages[1:], "max_tokens": 4})
print(json.dumps({"chat": chat["usage"]["prompt_tokens_details"]["cached_tokens"], "ahead": ahead,
                  "after": after["usage"]["prompt_tokens_details"]["cached_tokens"]}))
PYTHON
rc=$? err=$(cat "$tmp/err") out=$(cat "$tmp/out")
check "the server finds it, too" json_is "j['chat'] >= $chunks" True
check "/v1/cache/prefetch with messages is the server's way" json_is 'j["after"] >= 128' True
kill "$server" && wait "$server"
plan_end
