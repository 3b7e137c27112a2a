# test_demo.sh - make demo: the figures come first, and every answer is right.
. tests/e2e/lib.sh

# On a busy machine `auto` may find that computing is faster than reading, and restore nothing. So
# the plan is forced.
export HCACHE_PLAN=kv
timeout "$PATIENCE" tools/demo.sh >"$tmp/out" 2>"$tmp/err" </dev/null
rc=$? out=$(cat "$tmp/out") err=$(cat "$tmp/err")
check "the demo ends well: it fails where an answer is wrong or the outputs differ" test "$rc" -eq 0
check "all but the last tokens were restored" grep -qE 'tokens restored +10[0-9][0-9] of 10' "$tmp/out"
line_of() { grep -nm1 -- "$1" "$tmp/out" | cut -d: -f1; }
check "the figures come before the conversation" test "$(line_of 'first token after')" -lt "$(line_of ' you:')"
check "what was told first is remembered last" grep -q 'Your dog is called Biscuit\.' "$tmp/out"

# A wrong answer makes the demo fail: here the script expects another word than the model gives.
mkdir "$tmp/tools" && cp tools/demo.sh "$tmp/tools" && ln -s "$PWD/models" "$tmp/models"
printf 'My dog is called Biscuit.\tFido\nWhat is my dog called?\tBiscuit\n' >"$tmp/tools/demo_dialogue.txt"
HCACHE_BUILD=$(dirname "$hc") timeout "$PATIENCE" "$tmp/tools/demo.sh" >"$tmp/out" 2>"$tmp/err" </dev/null
rc=$? err=$(cat "$tmp/err")
expect "a wrong answer ends the demo" 1 'should have said "Fido"'
check "with what was said until then" grep -q 'you:.*My dog is called Biscuit' "$tmp/err"
plan_end
