# test_profile.sh - hcache profile writes one file beside the store. `run` uses the profile and
# corrects it. If the profile belongs to another machine or has impossible values, `run` measures
# again.
. tests/e2e/lib.sh

model=$tmp/model
small_model "$model"
ids 200 7 >"$tmp/ids"
dirs=$tmp/a,$tmp/b
run=(run "$model" --token-ids "$tmp/ids" --max-tokens 2 --ignore-eos --store "$dirs" --save both --json)

run_hc profile "$model" --store "$dirs" --out "$tmp/my.platform"
check "measures" test "$rc" -eq 0
file=$(ls "$tmp"/a/profile-*.txt)
check "into one file beside the store" test -f "$file"
check "and where it was told" cmp "$file" "$tmp/my.platform"
check "which names machine, model, commit and date" \
    test "$(grep -cE '^(machine|model|commit|date) = .{5,}' "$file")" -eq 4
check "every curve has its R2" test "$(grep -cE 'R2 -?[0-9]+\.' "$tmp/out")" -ge 4
check "the store, DRAM and each device" \
    test "$(grep -E '^tier[0-9]_name' "$file" | sed 's/.*= //' | paste -sd,)" = "store,dram,device 0,device 1"
check "DRAM is read in place, and has no rate that cannot be true" \
    test "$(grep -A2 '^  dram' "$tmp/out" | head -2 | paste -sd ' ' | grep -c 'dram  *read in place.*device 0  *latency')" -eq 1
check "nothing else is left in the folder" test ! -e "$tmp/a/profile-scratch"
run_hc plan "$model" --platform "$tmp/my.platform" --history 4096
check "plan reads it, and calls the model as it is told" grep -q "^$model on .*: 4096 tokens from store" "$tmp/out"
run_hc plan --platform "$tmp/my.platform"
check "else by its fingerprint" grep -q '^model [0-9a-f]\{16\} on ' "$tmp/out"
run_hc plan --platform "$tmp/my.platform" --history 4096 --tier 1
check "plan names no rate of DRAM either" grep -q ': 4096 tokens from dram, read in place$' "$tmp/out"

commit=$(grep '^commit' "$file")
run_hc "${run[@]}"
run_hc "${run[@]}" --plan kv
check "run restores" json_is 'j["cached_tokens"]' 192
check "with the profile that is there" grep -qxF "$commit" "$file"

refused() { # refused NAME PATTERN SED
    sed -i "$3" "$file"
    run_hc profile "$model" --store "$dirs"
    check "$1: refused with its reason, measured again" matches 0 "$2.*measuring again"
    check "$1: and replaced" cmp -s <(grep '^machine\|^model' "$tmp/my.platform") <(grep '^machine\|^model' "$file")
}
refused "another machine" "another machine: 'elsewhere" 's/^machine = .*/machine = elsewhere/'
refused "another model" "another model: 'feed" 's/^model = .*/model = feed/'
refused "not a number" 'c_h_b_s is not a number' 's/^c_h_b_s = .*/c_h_b_s = nan/'
refused "zero" 'tier0_bytes_per_s is zero' 's/^tier0_bytes_per_s = .*/tier0_bytes_per_s = 0/'
refused "negative" 'c_tok_b_s is negative' 's/^c_tok_b_s = .*/c_tok_b_s = -1/'
head -c -1 "$file" >"$tmp/cut" && cat "$tmp/cut" >"$file"
refused "cut off" "it is cut off" ""

sed -i 's/^machine = .*/machine = elsewhere/' "$file"
run_hc "${run[@]}" --plan kv
check "run goes on with another machine's profile" json_is 'j["cached_tokens"]' 192
check "and says that it measures again" matches 0 "another machine: 'elsewhere.*measuring again"

run_hc profile "$model"
check "without a store: compute and DRAM" grep -q '^  dram' "$tmp/out"
(cd "$tmp" && "$hc" profile "$model" --store memory >"$tmp/out" 2>&1)
check "\"memory\" is no folder" test "$(grep -c '^  dram' "$tmp/out")" -gt 0 -a ! -e "$tmp/memory"
run_hc profile "$model" --out "$tmp/none/my.platform"
check "what cannot be written is known before it measures" matches 1 "none: No such file"
run_hc profile "$tmp/nothing" --store "$dirs"
check "no model: exit code 1" test "$rc" -eq 1
run_hc profile
check "no argument: usage, exit code 2" test "$rc" -eq 2
plan_end
