# test_store_cmd.sh - hcache store: stat, ls, verify and gc, on a store that a run has filled, and on
# the same store damaged.
. tests/e2e/lib.sh

model=$tmp/model
small_model "$model"
ids 200 7 >"$tmp/ids"
dirs=$tmp/a,$tmp/b

run_hc store stat "$dirs"
expect "no store: said so" 1 'there is no store'
check "and none was made" test ! -e "$tmp/a"
run_hc store gc "$dirs"
check "not by gc either" test "$rc" -eq 1 -a ! -e "$tmp/a"

run_hc run "$model" --token-ids "$tmp/ids" --max-tokens 8 --ignore-eos --store "$dirs" --save both
check "a run saves" test "$rc" -eq 0

run_hc store stat "$dirs" --json
check "stat counts 3 chunks and a partial one on 2 devices" json_is '[j["chunks"], j["partial_chunks"], j["tokens"], j["devices"]]' "4 1 207 2"
check "of one model" json_is 'len(j["models"])' 1
advice='[[r["contexts"], r["bytes"] > 0] for r in j["advice"]]'
run_hc store stat "$dirs" --advise --json
check "stat --advise: one context, used within the hour" json_is "$advice" \
    "[1, True] [1, True] [1, True] [1, True] [1, True]"
check "of all bytes, and a quarter of them" json_is 'j["advice"][0]["bytes"] // 4 == j["advice"][0]["quarter_bytes"]' True
python3 -c 'import sqlite3, sys, time
c = sqlite3.connect(sys.argv[1])
c.execute("UPDATE extent SET used_wall_s = ?", (int(time.time()) - 2 * 86400,))
c.commit()' "$tmp/a/index.db"
run_hc store stat "$dirs" --advise --json
check "two days later: used within a week" json_is "$advice" "[0, False] [0, False] [1, True] [1, True] [1, True]"
run_hc store stat "$dirs" --advise
check "as a table" grep -qE '^week +1 +[0-9.]+ [KM]iB +[0-9.]+ [KM]?i?B$' "$tmp/out"
run_hc store ls "$dirs" --json
check "ls lists them parents first" json_is '[c["index"] for c in j["chunks"]]' "0 1 2 3"
check "each has its parent's key" json_is 'all(b["parent"] == a["key"] for a, b in zip(j["chunks"], j["chunks"][1:]))' True
check "and both kinds of every layer" json_is 'set("".join(c["layers"] for c in j["chunks"])) == {"B"}' True
run_hc store ls "$dirs"
check "as text a chain is one line" grep -qE '^0\.\.206 .* B+$' "$tmp/out"
run_hc store ls "$dirs" --chunks
check "or a line per chunk" test "$(grep -cE '^[0-9]+\.\.' "$tmp/out")" -eq 4
check "with a heading" grep -qE '^TOKENS +KEY +MODEL +SIZE +LAST USED +LAYERS, TITLE$' "$tmp/out"
check "and a sum" grep -qE '^4 chunks, 207 tokens, [0-9.]+ [KM]iB$' "$tmp/out"
run_hc store ls "$dirs" --why --json
check "ls --why: a leaf is evicted first, what it continues is kept" json_is \
    '[c["why"] for c in j["chunks"]][-2:]' "kept because other chunks continue it evicted as number 1"
run_hc store ls "$tmp/b,$tmp/a"
expect "directories in the wrong order" 1 'the order matters'
run_hc store ls "$tmp/a"
expect "a directory too few" 1 'one of 2 directories'

run_hc store verify "$dirs" --json
check "verify finds it sound" json_is '[j["chunks"], j["bad"]]' "4 0"
run_hc store gc "$dirs" --json
check "gc leaves what is used" test "$rc" -eq 0 -a "$(json 'j["file_bytes"] > 0')" = True
run_hc store verify "$dirs"
check "and it is sound after" test "$rc" -eq 0

# Damages a hidden state of layer 1. (Hidden states of layer 0 are embeddings and are never read.)
# The records of layer 1 follow the header of 4096 bytes and layer 0's 64 rows of bf16.
behind_first=$(python3 -c 'import json,sys; print(4096 + 64 * 2 * json.load(open(sys.argv[1]))["hidden_size"] + 520)' "$model/config.json")
printf 'damage' | dd of="$tmp/a/seg-000000.hc" bs=1 seek="$behind_first" conv=notrunc 2>/dev/null
run_hc store verify "$dirs"
expect "a damaged record: exit code 1" 1 '1 damaged'
check "and which one" grep -q '^damaged: chunk ' "$tmp/out"
run_hc store verify "$dirs"
expect "verify has changed nothing" 1 '1 damaged'
run_hc run "$model" --token-ids "$tmp/ids" --max-tokens 8 --ignore-eos --store "$dirs" --save both --plan hidden
check "a run recomputes and saves it anew" test "$rc" -eq 0
run_hc store verify "$dirs"
check "then it is sound again" test "$rc" -eq 0

# Opening for writing repairs what can be repaired, and reports what cannot.
run_hc store stat "$tmp/a,"
expect "an empty directory name" 2 'name is empty'
printf 'damage' | dd of="$tmp/b/superblock" bs=1 seek=100 conv=notrunc 2>/dev/null
run_hc store verify "$dirs"
expect "one copy of a superblock is damaged" 1 '1 damaged'
check "which" grep -q '^damaged: .*b/superblock' "$tmp/out"
run_hc store gc "$dirs"
check "gc writes it again" test "$rc" -eq 0
run_hc store verify "$dirs"
check "sound again" test "$rc" -eq 0
head -c 20000 /dev/urandom >"$tmp/a/index.db"
run_hc store verify "$dirs"
expect "the index is lost: what to do" 1 'must be rebuilt, which run, serve and store gc do'
run_hc store gc "$dirs"
check "gc rebuilds it" test "$rc" -eq 0
run_hc store verify "$dirs" --json
check "and all is there" json_is '[j["chunks"], j["bad"]]' "4 0"
truncate -s 8192 "$tmp/a/seg-000000.hc"
run_hc store verify "$dirs"
expect "a segment is cut: damaged" 1 'damaged'
check "and why" grep -q 'segment file is missing or too short' "$tmp/out"
run_hc store stat "$dirs"
check "stat says it, too" grep -q 'store verify says why' "$tmp/out"

ids 64 7 >"$tmp/ids64"
run_hc run "$model" --token-ids "$tmp/ids64" --max-tokens 1 --ignore-eos --store "$tmp/one" --save kv
check "one chunk is saved" test "$rc" -eq 0
run_hc store stat "$tmp/one"
check "one of each is singular" grep -q '^1 chunk (64 tokens) in 1 extent on 1 directory$' "$tmp/out"

# `store ls` shows the titles of the conversations that use a chunk, if no server has the store
# open.
talk() { echo "$1" | "$hc" run models/demo --store "$tmp/talks" --save kv -i --conversation "$2" -n 40 >/dev/null 2>&1; }
talk "My dog is called Biscuit, and we live in Lisbon near the old harbour." "Dogs in Lisbon"
talk "Tell me a story about a mole in a deep burrow." "A mole"
run_hc store ls "$tmp/talks"
check "ls shows the title of each conversation" test "$(grep -oE '"(Dogs in Lisbon|A mole)"$' "$tmp/out" | sort -u | wc -l)" -eq 2
run_hc store ls "$tmp/talks" --json
check "and in the JSON" json_is 'sorted({c["title"] for c in j["chunks"] if c["title"]})' "A mole Dogs in Lisbon"
run_hc store ls "$tmp/one" --json
check "what belongs to no conversation has none" json_is '{c["title"] for c in j["chunks"]}' "{None}"

# `store rm` permanently removes a chunk and all chunks that continue it.
run_hc run "$model" --token-ids "$tmp/ids" --max-tokens 1 --ignore-eos --store "$tmp/one" --save kv
run_hc store ls "$tmp/one" --json
second=$(json '[c["key"] for c in j["chunks"] if c["index"] == 1][0]')
n_all=$(json 'len(j["chunks"])')
n_behind=$(json 'len([c for c in j["chunks"] if c["index"] >= 1])')
run_hc store rm "$tmp/one"
expect "rm: what to erase" 2 'either --key or --all'
run_hc store rm "$tmp/one" --key 0000
expect "rm: a key that is too short" 2 'at least 8 digits'
run_hc store rm "$tmp/one" --key 0123456789abcdef
expect "rm: no such chunk" 1 'no chunk has the key'
run_hc store rm "$tmp/one" --key "${second:0:16}" --json
check "rm erases a chunk and what continues it" json_is 'j["erased_chunks"]' "$n_behind"
run_hc store ls "$tmp/one" --json
check "and leaves the others" json_is 'len(j["chunks"])' $((n_all - n_behind))
run_hc store rm "$tmp/one" --all
check "rm --all" grep -q "erased" "$tmp/out"
check "leaves no byte of it" test "$(tr -d '\0' <"$tmp/one/seg-000000.hc" | wc -c)" -eq 0
run_hc store rm "$tmp/no-such-store" --all
expect "rm makes no store" 1 'no store'

run_hc store
check "no command: usage, exit code 2" test "$rc" -eq 2
run_hc store frobnicate "$dirs"
expect "an unknown command" 2 'none of stat, ls, verify, rm, export, import, unpin and gc'
run_hc store stat --help
check "help" test "$rc" -eq 0
# --- state that was stored unpacked is packed later, and comes back with the same bits ---
run_twice() {  # run_twice STORE: the second run restores what the first one has saved
    run_hc run models/demo --token-ids "$tmp/later" --max-tokens 4 --ignore-eos --dtype bf16 --store "$1" --save both --plan "$2" \
        --pack off --json
}
ids 300 9 >"$tmp/later"
run_twice "$tmp/pack" recompute
want=$(json '[j["token_ids"], j["logits_digest"]]')
run_hc store gc "$tmp/pack" --pack --json
check "gc --pack packs all full chunks" json_is '[j["packed_chunks"], j["left_chunks"]]' "4 0"
check "to fewer bytes" json_is '0 < j["packed_bytes"] < 0.9 * j["unpacked_bytes"]' True
run_hc store verify "$tmp/pack" --json
check "which are sound" json_is 'j["bad"]' 0
for plan in kv hidden; do
    run_twice "$tmp/pack" $plan
    check "packed state comes back by $plan" json_is 'j["cached_tokens"] >= 256' True
    check "with the same bits" test "$(json '[j["token_ids"], j["logits_digest"]]')" = "$want"
done
run_hc store gc "$tmp/pack" --pack --json
check "what is packed stays" json_is 'j["packed_chunks"]' 0
plan_end
