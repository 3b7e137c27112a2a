# test_store_bundle.sh - `hcache store export` and `import`: state moved to another store is
# restored with equal bits, and a damaged, truncated or foreign file is detected.
. tests/e2e/lib.sh

model=$tmp/model
small_model "$model"
ids 400 7 >"$tmp/one"
ids 300 8 >"$tmp/two"
dirs=$tmp/a,$tmp/b
file=$tmp/state.hcb

run_again() {  # run_again STORE IDS: continues the stored context
    run_hc run "$model" --token-ids "$2" --max-tokens 4 --ignore-eos --store "$1" --plan kv --json
}
for i in one two; do
    run_hc run "$model" --token-ids "$tmp/$i" --max-tokens 1 --ignore-eos --store "$dirs" --save both
    check "a run saves" test "$rc" -eq 0
done
run_again "$dirs" "$tmp/one"
want=$(json '[j["token_ids"], j["logits_digest"], j["cached_tokens"]]')
check "and is restored" json_is 'j["cached_tokens"] > 300' True

run_hc store ls "$dirs" --json
key=$(json '[c["key"] for c in j["chunks"] if c["index"] == 2][0]')
n_all=$(json 'len(j["chunks"])')
run_hc store export "$dirs" --out "$file" --all --json
check "all is exported" json_is '[j["exported_chunks"], j["gone_chunks"]]' "$n_all 0"
check "into a file of its owner" test "$(stat -c %a "$file")" = 600
run_hc store export "$dirs" --out "$file" --all
expect "a file that is there is not replaced" 1 'already exists'
run_hc store export "$dirs" --out "$tmp/none.hcb"
expect "what is exported must be said" 2 'either --key or --all'

run_hc store import "$tmp/c" --in "$file" --json
check "and imported, into a store of another form" json_is '[j["imported_chunks"], j["known_chunks"]]' "$n_all 0"
run_hc store verify "$tmp/c" --json
check "where it is sound" json_is '[j["chunks"], j["bad"]]' "$n_all 0"
run_again "$tmp/c" "$tmp/one"
check "it comes back with equal bits" test "$(json '[j["token_ids"], j["logits_digest"], j["cached_tokens"]]')" = "$want"
run_hc store import "$tmp/c" --in "$file" --json
check "what is there is not stored twice" json_is '[j["imported_chunks"], j["known_chunks"] > 0]' "0 True"

run_hc store export "$dirs" --out "$tmp/key.hcb" --key "${key:0:12}" --json
check "one context alone is exported" json_is "0 < j[\"exported_chunks\"] < $n_all" True
n_one=$(json 'j["exported_chunks"]')
run_hc store import "$tmp/d" --in "$tmp/key.hcb" --json
check "and imported" json_is 'j["imported_chunks"]' "$n_one"
run_hc store ls "$tmp/d" --json
check "from its first chunk on" json_is 'sorted(c["index"] for c in j["chunks"])[0]' 0

size=$(stat -c %s "$file")
head -c $((size / 2)) "$file" >"$tmp/cut.hcb"
run_hc store import "$tmp/e" --in "$tmp/cut.hcb"
expect "a file that is cut off is told" 1 'ends too early'
run_hc store verify "$tmp/e" --json
check "what came before is stored, and sound" json_is "[0 < j[\"chunks\"] < $n_all, j[\"bad\"]]" "True 0"
run_hc store import "$tmp/e" --in "$file" --json
check "the whole file completes it" json_is 'j["imported_chunks"] + j["known_chunks"]' "$n_all"
check "and skips what is there" json_is 'j["known_chunks"] > 0' True

for at in 100 $((size / 2)) $((size - 4096)); do
    cp "$file" "$tmp/bad.hcb"
    python3 - "$tmp/bad.hcb" "$at" <<'PYTHON'
import sys
from pathlib import Path
b = bytearray(Path(sys.argv[1]).read_bytes())
at = int(sys.argv[2])
while b[at] == 0 and at > 4096:  # skips zeros after a record, which do not count
    at -= 1
b[at] ^= 4
Path(sys.argv[1]).write_bytes(b)
PYTHON
    run_hc store import "$tmp/f$at" --in "$tmp/bad.hcb"
    check "a damaged byte at $at is found" test "$rc" -eq 1
    run_hc store verify "$tmp/f$at" --json
    check "and nothing damaged is stored" json_is 'j["bad"]' 0
done
run_hc store import "$tmp/g" --in "$tmp/one"
expect "another file is refused" 1 'not a file of exported chunks|too early'
run_hc store import "$tmp/h" --in "$tmp/nothing"
expect "so is none" 1 'No such file'
check "and no store is made for it" test ! -e "$tmp/h"
plan_end
