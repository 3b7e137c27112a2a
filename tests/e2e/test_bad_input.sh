# test_bad_input.sh - every mistake of a user, a disk or a download gives a clear message and exit
# code 1 or 2. The program does not crash, loses no data and prints nothing else.
. tests/e2e/lib.sh

good=$tmp/good
small_model "$good"
ids 150 7 >"$tmp/ids150"
gen=(--token-ids "$tmp/ids150" --max-tokens 8 --temperature 0 --ignore-eos --json)

run_hc run "$good" "${gen[@]}"
check "a good model runs" test "$rc" -eq 0
reference=$(json 'j["token_ids"]')
digest=$(json 'j["logits_digest"]')
same_output() { [ "$rc" -eq 0 ] && json_is 'j["token_ids"]' "$reference" && json_is 'j["logits_digest"]' "$digest"; }
check "it gave 8 tokens" test "$(wc -w <<<"$reference")" -eq 8

# --- models ---------------------------------------------------------------------------------------

run_hc run "$tmp/no-such-folder" "${gen[@]}"
expect "no such folder" 1 'no-such-folder.*a model is a folder'
run_hc run "$tmp/ids150" "${gen[@]}"
expect "a file for a model" 1 'ids150: is a file; a model is a folder'
run_hc run synth:no-such-shape "${gen[@]}"
check "no such shape: 1 or 2, and the known ones are listed" test \( "$rc" -eq 1 -o "$rc" -eq 2 \) -a -n "$(grep -E 'tiny-gqa' "$tmp/err")"

run_bad() { # run_bad KIND
    rm -rf "$tmp/bad"
    cp -r "$good" "$tmp/bad"
    python3 sim/damaged_model.py "$1" "$tmp/bad" || { check "damaged_model.py $1" false; return; }
    run_hc run "$tmp/bad" "${gen[@]}"
}
bad_model() { # bad_model KIND TEXT
    run_bad "$1"
    expect "model: $1" 1 "$2"
    check "model: $1: nothing on stdout" test -z "$out"
}
bad_model missing 'model\.safetensors'
bad_model no_config 'config\.json'
bad_model empty 'model\.safetensors'
bad_model truncated 'model\.safetensors'
bad_model one_byte_short 'model\.safetensors'
bad_model header_longer_than_file 'model\.safetensors.*header'
bad_model header_wraps 'model\.safetensors.*header'
bad_model header_no_json 'model\.safetensors'
bad_model offsets_overlap 'overlap|offset|belong to no tensor'
bad_model offsets_beyond_file 'model\.safetensors'
bad_model offsets_backwards 'model\.safetensors'
bad_model unknown_dtype 'Q17'
bad_model tensor_missing 'q_proj|belong to no tensor'
bad_model wrong_shape 'q_proj'
bad_model unknown_architecture 'quokka'
bad_model config_no_json 'config\.json'
bad_model config_negative 'num_hidden_layers'
bad_model config_huge 'config\.json|hidden_size|memory|embed|shape'
bad_model heads_do_not_divide 'num_key_value_heads|heads'
bad_model context_huge 'rotation tables for a context of 1073741824 tokens.*--max-context'
bad_model weights_nan 'all logits are NaN'
check "model: weights_nan: the tensor is named" grep -q "tensor '.*norm.weight' holds values that are no numbers.*row 0" "$tmp/err"
run_bad row_nan
check "model: row_nan: what does not meet it is as it was" test "$rc" -eq 0 -a "$(json 'j["token_ids"]')" = "$reference"
check "model: row_nan: the tensor and the row are named" grep -q "tensor 'model.embed_tokens.weight' holds values that are no numbers.*row 3071" "$tmp/err"
bad_model tokenizer_too_big 'tokenizer|vocab'
bad_model tokenizer_no_json 'tokenizer\.json'

# --- prompts and options --------------------------------------------------------------------------

ids 5000 3 >"$tmp/long"
run_hc run "$good" --token-ids "$tmp/long" --max-tokens 1 --json
check "a prompt longer than the context: 1 or 2, with both numbers" \
    bash -c "[ $rc -eq 1 -o $rc -eq 2 ] && grep -q 5000 '$tmp/err' && grep -qE '512|2048' '$tmp/err'"
echo '1 2 99999999' >"$tmp/high"
run_hc run "$good" --token-ids "$tmp/high" --max-tokens 1 --json
check "a token id beyond the vocabulary: 1 or 2, named" bash -c "[ $rc -eq 1 -o $rc -eq 2 ] && grep -q 99999999 '$tmp/err'"
echo '1 two 3' >"$tmp/words"
run_hc run "$good" --token-ids "$tmp/words" --max-tokens 1 --json
check "token ids that are none: 1 or 2, named" bash -c "[ $rc -eq 1 -o $rc -eq 2 ] && grep -q two '$tmp/err'"
printf '1 2\0 3' >"$tmp/nul"
run_hc run "$good" --token-ids "$tmp/nul" --max-tokens 1 --json
expect "token ids behind a NUL are not left out" 1 'nul: "2" at byte 2 is not a token id'
run_hc run "$good" --token-ids "$tmp/no-such-file" --max-tokens 1 --json
check "no such prompt file: 1 or 2, named" bash -c "[ $rc -eq 1 -o $rc -eq 2 ] && grep -q no-such-file '$tmp/err'"
printf 'Once \xff\xfe upon' >"$tmp/latin"
run_hc run "$good" --prompt-file "$tmp/latin" --max-tokens 1 --json
expect "invalid UTF-8 in the prompt: the place is named" 1 "latin: invalid UTF-8 at byte 5"
printf 'Once \xed\xa0\x80' >"$tmp/surrogate"
run_hc run "$good" --prompt-file "$tmp/surrogate" --max-tokens 1 --json
expect "a surrogate is invalid UTF-8" 1 'UTF-8|utf8'
run_hc run "$good" --no-special --prompt "" --max-tokens 1
expect "an empty prompt" 2 'prompt is empty'
bad_option() { # bad_option TEXT ARGS...
    local text=$1
    shift
    run_hc run "$good" "${gen[@]}" "$@"
    expect "option: $*" 2 "$text"
}
bad_option 'max-tokens.*-1' --max-tokens -1
bad_option 'dtype.*f8' --dtype f8
bad_option 'temperature.*-1' --temperature -1
bad_option 'top-p' --top-p 1.5
bad_option 'threads' --threads -2
bad_option 'save.*everything' --save everything
bad_option 'plan.*sideways' --plan sideways
bad_option 'throttle' --throttle fast
run_hc run "$good" "${gen[@]}" --max-context 1000000
expect "more context than the model has: said, not silently cut" 0 "1000000 tokens was asked for; the model's own"
bad_option 'at least 65536' --throttle 1
HCACHE_PLUGINS="$tmp/nowhere" run_hc run "$good" "${gen[@]}" --device cuda
expect "a CUDA backend that is not there: its place is named" 1 "hcache-cuda.so cannot be loaded from $tmp/nowhere"
run_hc run "$good" "${gen[@]}" --throttle 1MB
expect "a throttle without a store: said, and the answer comes" 0 "without a store it has no effect"
bad_option 'memory cannot be slowed' --throttle 1MB --store memory
bad_option 'memory cannot be combined with directories' --store "$tmp/folder,memory"
check "option: and no folder is made" test ! -e memory -a ! -e "$tmp/folder"
run_hc run
expect "no model: 2" 2 'MODEL_DIR'
run_hc run "$good" "${gen[@]}" --plan RHKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKKK
check "a plan with too many layers: 1 or 2" bash -c "[ $rc -eq 1 -o $rc -eq 2 ] && [ -s '$tmp/err' ]"

# --- stores ---------------------------------------------------------------------------------------

store=$tmp/store
run_hc run "$good" "${gen[@]}" --store "$store" --save both
check "saving changes nothing" same_output
check "two chunks are committed" json_is 'j["committed_tokens"] >= 128' True
run_hc run "$good" "${gen[@]}" --store "$store" --plan kv
check "restoring changes nothing" same_output
check "the stored prefix was used" json_is 'j["cached_tokens"]' 128

: >"$tmp/file"
run_hc run "$good" "${gen[@]}" --store "$tmp/file/store"
expect "a store that cannot be made" 1 "$tmp/file"
run_hc run "$good" "${gen[@]}" --store "$tmp/file"
expect "a store that is a file" 1 'file'
# Root may write everywhere, unless it gives up its capabilities.
mkdir -p "$tmp/readonly"
chmod 500 "$tmp/readonly"
common=$hc
[ "$(id -u)" -ne 0 ] || hc="setpriv --bounding-set -dac_override --inh-caps -dac_override $hc"
# shellcheck disable=SC2086 # words
timeout "$PATIENCE" $hc run "$good" "${gen[@]}" --store "$tmp/readonly/s" >"$tmp/out" 2>"$tmp/err"
rc=$? hc=$common err=$(cat "$tmp/err")
expect "a store in a read-only folder" 1 'readonly'
mkdir -p "$tmp/full-of-junk" && echo junk >"$tmp/full-of-junk/superblock"
cp "$tmp/ids150" "$tmp/full-of-junk/index.db"
run_hc run "$good" "${gen[@]}" --store "$tmp/full-of-junk"
check "a folder with other files: output is right, or it is refused" \
    bash -c "[ $rc -eq 0 ] || { [ $rc -eq 1 ] && grep -q full-of-junk '$tmp/err'; }"

run_hc run synth:tiny-mha "${gen[@]}"
other=$(json 'j["token_ids"]') other_digest=$(json 'j["logits_digest"]')
run_hc run synth:tiny-mha "${gen[@]}" --store "$store"
check "a store of another model: its own output" \
    test "$rc" -eq 0 -a "$(json 'j["token_ids"]')" = "$other" -a "$(json 'j["logits_digest"]')" = "$other_digest"
check "a store of another model: a miss" json_is 'j["cached_tokens"]' 0
run_hc run "$good" "${gen[@]}" --store "$store" --dtype f32
check "another state dtype: a miss" json_is 'j["cached_tokens"]' 0
run_hc run "$good" "${gen[@]}" --store "$store" --plan kv
check "and the first model still finds its state" json_is 'j["cached_tokens"]' 128
check "with its own output" same_output

run_hc run "$good" "${gen[@]}" --store "$tmp/kv-only" --save kv
run_hc run "$good" "${gen[@]}" --store "$tmp/kv-only" --plan hidden
check "a plan for a kind that is not stored: done without it" test "$rc" -eq 0
check "a plan for a kind that is not stored: the plan says what ran" \
    json_is '"H" in j["plan"]["layers"][1:]' False
check "a plan for a kind that is not stored: the same output" same_output

# A bit flip on the disk: in the middle of each file of the store, one file at a time.
flip() { # flip FILE OFFSET
    local byte
    byte=$(od -An -tu1 -j "$2" -N 1 "$1")
    printf "\\$(printf %03o $((byte ^ 16)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}
# Prints offsets worth flipping: in the first, the middle and the last page of a file that is not
# all zero.
places() { python3 -c '
import sys
pages = [at for at, page in enumerate(iter(lambda f=open(sys.argv[1], "rb"): f.read(4096), b"")) if any(page)]
print(*sorted({4096 * p + o for p, o in ((pages[0], 100), (pages[len(pages) // 2], 1000), (pages[-1], 30))}) if pages else "")' "$1"; }
mv "$store" "$tmp/store.good"
while read -r file; do
    for at in $(places "$tmp/store.good/$file"); do
        [ "$at" -lt "$(stat -c %s "$tmp/store.good/$file")" ] || continue
        rm -rf "$store"
        cp -r --sparse=always "$tmp/store.good" "$store"
        flip "$store/$file" "$at"
        run_hc run "$good" "${gen[@]}" --store "$store"
        if [ "$rc" -eq 0 ]; then
            check "a flipped bit in $file at $at: never other output" same_output
        else
            expect "a flipped bit in $file at $at: or a clear refusal" 1 "$store|store"
        fi
    done
done < <(cd "$tmp/store.good" && find . -type f | sort)

# Two processes use one store: the second is refused and the first is not disturbed.
rm -rf "$store"
ids 200 9 >"$tmp/ids200"
"$hc" serve synth:tiny-gqa --port 0 --store "$store" >"$tmp/first.log" 2>&1 &
first=$!
check "a process has the store" test -n "$(port_of "$first" "$tmp/first.log")"
run_hc run synth:tiny-gqa "${gen[@]}" --store "$store"
expect "a second process on the same store: refused" 1 'in use|another process|locked|busy'
kill -TERM "$first"
wait "$first"
check "the first process was not disturbed" test $? -eq 0

# The size of files is limited, as on a full disk.
ids 200 11 >"$tmp/ids200b"
large=(--token-ids "$tmp/ids200b" --max-tokens 100 --temperature 0 --ignore-eos --json)
run_hc run synth:tiny-gqa "${large[@]}"
reference=$(json 'j["token_ids"]') digest=$(json 'j["logits_digest"]')
(ulimit -f 100 && timeout 120 "$hc" run synth:tiny-gqa "${large[@]}" --store "$tmp/limited" --save both >"$tmp/out" 2>"$tmp/err")
rc=$? out=$(cat "$tmp/out")
check "files that may not grow: generation goes on, with the same tokens" same_output
check "files that may not grow: one warning" test "$(grep -ciE 'no space|full' "$tmp/err")" -eq 1

# The disk fills up while saving: generation continues, and saving stops with one warning.
mkdir -p "$tmp/small"
if mount -t tmpfs -o size=1m tmpfs "$tmp/small" 2>/dev/null; then
    cleanup() { umount "$tmp/small" 2>/dev/null; rm -rf "$tmp"; }
    full=(--token-ids "$tmp/ids200" --max-tokens 600 --temperature 0 --ignore-eos --json)
    run_hc run synth:tiny-gqa "${full[@]}"
    reference=$(json 'j["token_ids"]') digest=$(json 'j["logits_digest"]')
    run_hc run synth:tiny-gqa "${full[@]}" --store "$tmp/small/store" --save both
    check "a full disk: generation goes on, with the same tokens" same_output
    check "a full disk: one warning" test "$(grep -ciE 'no space|full' "$tmp/err")" -eq 1
    run_hc run synth:tiny-gqa "${full[@]}" --store "$tmp/small/store"
    check "a full disk: what is stored is still right" same_output
    umount "$tmp/small"
else
    skip "a full disk" "mounting a small tmpfs is not permitted here"
fi
plan_end
