# test_cli.sh - the command line itself: help for every command, exit code 2 and a hint for
# mistakes.
. tests/e2e/lib.sh

run_hc
expect "no command: usage, 2" 2 '^usage: hcache COMMAND'
run_hc --help
check "--help: 0, on stdout" test "$rc" -eq 0 -a -n "$out" -a -z "$err"
run_hc --version
check "--version" grep -qE '^hcache [0-9]+\.[0-9]+\.[0-9]+ \(.+\)$' "$tmp/out"
run_hc frobnicate
expect "unknown command: 2" 2 'unknown command "frobnicate"'
run_hc chat models/demo
expect "a word of other programs: 2, and what it is here" 2 'unknown command "chat"; .*hcache run MODEL_DIR -i'

for c in $("$hc" --help | sed -n '/^commands:/,/^$/s/^  \([a-z]*\) .*/\1/p'); do
    run_hc "${c}e"
    expect "${c}e: the nearest command is suggested" 2 "did you mean \"$c\""
    [ "$c" = why ] && continue # it asks a server, which is not there
    run_hc "$c"
    check "$c alone: 0 or 2, never a crash" test "$rc" -eq 0 -o "$rc" -eq 2
done
run_hc why --url http://127.0.0.1:1
expect "why without a server: 1" 1 'http://127.0.0.1:1: .*connect'
while read -r c; do # "run", "model info"
    # shellcheck disable=SC2086 # words
    {
        run_hc $c --help
        check "$c --help: 0, usage on stdout" test "$rc" -eq 0 -a -z "$err" -a -n "$(grep "^usage: hcache $c" "$tmp/out")"
        run_hc $c --help=markdown
        check "$c --help=markdown" grep -q '^| option |' "$tmp/out"
        run_hc $c --no-such-option
        expect "$c: an unknown option: 2, named" 2 'no-such-option'
        run_hc $c x --config "$tmp/none.conf"
        expect "$c: a missing config file: 2, named" 2 'none\.conf'
    }
done < <(tools/options.sh "$hc" --names)

version=$("$hc" --version | cut -d' ' -f2)
check "--version is a version" grep -qxE '[0-9]+\.[0-9]+\.[0-9]+' <<<"$version"
check "the header has the same one" grep -qxF "#define HCACHE_VERSION \"$version\"" include/hcache.h
check "and the first entry of the changelog" test "$(grep -m1 -oE '^## [0-9.]+' CHANGELOG.md)" = "## $version"

small_model "$tmp/plain"
printf 'Once upon a time' | "$hc" tokenize "$tmp/plain" >"$tmp/ids"
head -c 4000 SECURITY.md >"$tmp/stack.txt"
# shellcheck disable=SC2016 # the inner shell expands them
for what in "what is computed" "what is restored: it is planned"; do
    check "a stack of 128 KiB is enough (ulimit -s) for $what" \
        bash -c 'ulimit -s 128 && exec "$0" run models/demo --raw --store "$1" --prompt-file "$1.txt" -n 4 >/dev/null' "$hc" "$tmp/stack"
done
check "tokenize: BOS first" grep -qE '^0( [0-9]+)+$' "$tmp/ids"
"$hc" tokenize "$tmp/plain" --decode <"$tmp/ids" >"$tmp/text"
check "tokenize --decode gives the text back" test "$(cat "$tmp/text")" = "Once upon a time"
printf 'a\377b' | "$hc" tokenize "$tmp/plain" >"$tmp/out" 2>"$tmp/err"
rc=$? err=$(cat "$tmp/err")
expect "tokenize: invalid UTF-8: 1, with its place" 1 '(UTF-8|utf8).*1|1.*(UTF-8|utf8)'
echo '1 x' | "$hc" tokenize "$tmp/plain" --decode >"$tmp/out" 2>"$tmp/err"
rc=$? err=$(cat "$tmp/err")
expect "tokenize --decode: no id: 1" 1 '"x" at byte 2 is not a token id'
echo '999999' | "$hc" tokenize "$tmp/plain" --decode >"$tmp/out" 2>"$tmp/err"
rc=$? err=$(cat "$tmp/err")
expect "tokenize --decode: an id beyond the vocabulary: 1" 1 '999999'
echo 'a b' | "$hc" tokenize "$tmp/plain" --count >"$tmp/out"
check "tokenize --count" grep -qxE '[0-9]+' "$tmp/out"
check "tokenize to a full disk: 1" bash -c "echo a | '$hc' tokenize '$tmp/plain' >/dev/full 2>/dev/null; [ \$? -eq 1 ]"
plan_end
