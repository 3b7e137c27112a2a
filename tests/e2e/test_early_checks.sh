# test_early_checks.sh - impossible requests are refused before weights are made or loaded, and
# names are checked.
. tests/e2e/lib.sh

# A model of 140 GB. If memory or weights were checked first, the messages below would differ.
large=synth:llama-2-70b
ids 20 3 >"$tmp/ids"
run_hc run "$large" --prompt Hello
expect "no tokenizer: said first" 1 'llama-2-70b has no tokenizer'
run_hc run "$large" -i
expect "no tokenizer for a conversation: said first" 1 'llama-2-70b has no tokenizer'
run_hc ingest "$large" "$tmp/ids" --store "$tmp/store"
expect "no tokenizer for documents: said first" 1 'llama-2-70b has no tokenizer'
check "and no store was made" test ! -e "$tmp/store"
run_hc run "$large" --token-ids "$tmp/ids" --plan RHK
expect "a plan that does not suit the model: said first" 2 '3 layers, but the model has 80'
run_hc run "$large" --token-ids "$tmp/ids" --save HK
expect "a save that does not suit the model: said first" 2 'HK.*80|80.*HK'
run_hc run "$large" --token-ids "$tmp/no-such-file"
expect "a file of ids that is not there: said first" 1 'no-such-file'
run_hc run "$large" --prompt-file "$tmp/no-such-file"
expect "a prompt that is not there: said first" 1 'no-such-file'
if [ "$(awk '/MemTotal|SwapTotal/ { n += $2 } END { print n < 130000000 }' /proc/meminfo)" = 1 ]; then
    run_hc run "$large" --token-ids "$tmp/ids"
    expect "more weights than memory: said before they are made" 1 'choose a smaller model'
fi

# The store is opened before the weights are made. So a program that is refused uses less memory
# than the weights need.
"$hc" serve synth:tiny-gqa --port 0 --store "$tmp/store" >"$tmp/serve.log" 2>&1 &
server=$!
check "a process has the store" test -n "$(port_of "$server" "$tmp/serve.log")"
peak_kb() { # peak_kb ARGS...: prints the peak memory of hcache in KiB
    python3 -c 'import resource, subprocess, sys
subprocess.run(sys.argv[1:], capture_output=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)' "$hc" "$@"
}
run_hc run synth:bench-220m --token-ids "$tmp/ids" --store "$tmp/store"
expect "a store in use is refused" 1 'another process'
busy=$(peak_kb run synth:bench-220m --token-ids "$tmp/ids" --store "$tmp/store")
whole=$(peak_kb run synth:bench-220m --token-ids "$tmp/ids" --max-tokens 1)
check "before the weights are made ($busy of $whole KB)" test "$busy" -lt $((whole / 2))
kill "$server" && wait "$server"

# --- keys ---------------------------------------------------------------------------------------------------

# A key file with such a line is refused. If each part of the line were a key of its own, a single
# letter would let anyone in.
for line in 'one two' 'a\tb' '\357\273\277key' 'a\0b' 'a\001b'; do
    printf "good\n$line\n" >"$tmp/keys"
    chmod 600 "$tmp/keys"
    run_hc serve models/demo --port 0 --api-key-file "$tmp/keys"
    expect "a file with the line $line holds no keys" 2 'keys(: line 2 is not a key| holds a zero byte)'
done
run_hc serve models/demo --port 0 --api-key 'one two'
expect "nor does an option with two words" 2 'a key is one word'

# --- names --------------------------------------------------------------------------------------------------

HCACHE_MAX_TOKNES=5 HCACHE_PORT=80 run_hc tokenize --help
check "an unknown variable is named, with the one that was meant" \
    grep -qxF 'hcache: warning: no command reads the environment variable HCACHE_MAX_TOKNES; did you mean HCACHE_MAX_TOKENS?' "$tmp/err"
check "one of another command is not" test "$(wc -l <"$tmp/err")" -eq 1
HCACHE_FOO=1 HCACHE_MODEL_PATH=x run_hc tokenize --help
check "none is suggested that is not near" \
    test "$(grep -cE '^hcache: warning: no command reads the environment variable HCACHE_(FOO|MODEL_PATH)$' "$tmp/err")" -eq 2
# Every variable that the sources read is a known name.
for name in $(grep -rhoE 'getenv\("HCACHE_[A-Z_]+' src apps | grep -oE 'HCACHE_[A-Z_]+' | sort -u); do
    env "$name=" "$hc" --version 2>"$tmp/err" >"$tmp/out"
    check "$name is known" test ! -s "$tmp/err"
done

# The variable of every option of every command is a known name, too.
known=()
while read -r name; do
    # shellcheck disable=SC2086 # words
    for option in $("$hc" $name --help=words | grep -oE '^--[a-z0-9-]+'); do
        option=${option#--}
        option=${option^^}
        [ "$option" = HELP ] || known+=("HCACHE_${option//-/_}=")
    done
done < <(tools/options.sh "$hc" --names)
env "${known[@]}" "$hc" --version 2>"$tmp/err" >"$tmp/out"
check "the variables of all ${#known[@]} options are known" test "${#known[@]}" -gt 200 -a ! -s "$tmp/err"

run_hc model --families
check "the families are listed" test "$rc" -eq 0 -a -n "$(grep -E '^  llama +LlamaForCausalLM' "$tmp/out")"
check "and the formats" grep -q 'safetensors' "$tmp/out"
mkdir "$tmp/quokka" && echo '{"model_type": "quokka"}' >"$tmp/quokka/config.json"
run_hc run "$tmp/quokka" --prompt Hello
expect "a family that is unknown: those that are known" 1 'quokka.* not supported; these are: llama, .*model --families'
plan_end
