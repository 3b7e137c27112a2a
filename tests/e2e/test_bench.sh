# test_bench.sh - hcache bench restore and ablation run to their end on a tiny model and write what
# they promise. How fast anything is, is not looked at.
. tests/e2e/lib.sh

has_command bench || skip_all "there is no hcache bench yet"
model=synth:tiny-mha
restore=(bench restore "$model" --store "$tmp/store" --lengths 64,512 --rounds 2)

run_hc "${restore[@]}" --csv "$tmp/t.csv"
check "restore: a row per length and method" test "$rc" -eq 0 -a "$(wc -l <"$tmp/t.csv")" -eq 13
check "the same number of fields in each" test "$(awk -F, '{print NF}' "$tmp/t.csv" | sort -u | wc -l)" -eq 1
check "how much faster auto is" grep -qE '^ +auto: [0-9.]+x kv, .* less stored than kv' "$tmp/out"
run_hc "${restore[@]}" --methods kv,auto --as a100-1ssd:llama-2-13b
check "as another platform: says what it throttles to" grep -qE '^storage throttled to [0-9.]+ MB/s' "$tmp/out"
run_hc "${restore[@]}" --as a100-9ssd
expect "as no platform" 1 'a100-9ssd'
run_hc "${restore[@]}" --as a100-1ssd:llama-9
expect "as no model" 1 'llama-9'
run_hc bench restore "$model" --store memory --lengths 64 --sweep 1
expect "a sweep adds DRAM itself" 2 'adds DRAM itself'
run_hc bench restore "$model" --store memory --lengths 64 --throttle 1MB
expect "what cannot be throttled" 2 "cannot be throttled"

run_hc "${restore[@]}" --sweep 4 --seed 3 --csv "$tmp/s.csv"
check "sweep: a row per case, or it says which promise was broken" \
    test "$(wc -l <"$tmp/s.csv")" -eq 5 -a \( "$rc" -eq 0 -o "$(grep -c 'slower than the best' "$tmp/err")" -eq 1 \)
run_hc "${restore[@]}" --sweep 2 --skip 2 --seed 3 --csv "$tmp/s2.csv"
check "in pieces it draws the same cases" cmp -s <(tail -2 "$tmp/s.csv" | cut -d, -f1-4) <(tail -2 "$tmp/s2.csv" | cut -d, -f1-4)

run_hc bench ablation "$model" --store "$tmp/store" --tokens 128 --lengths 64,128 --rounds 1 --csv "$tmp/a.csv" --html "$tmp/a.html"
check "ablation" test "$rc" -eq 0
check "every figure is in the CSV" test "$(tail -n +2 "$tmp/a.csv" | cut -d, -f1 | sort -u | paste -sd' ')" = "11ac 11df 11gi 12 13a 13b 6.1.3"
check "eleven fields in each row" test "$(awk -F, '{print NF}' "$tmp/a.csv" | sort -u)" = 11
check "the report is well-formed" python3 - "$tmp/a.html" <<'EOF'
import sys
from html.parser import HTMLParser
class P(HTMLParser):
    VOID, open_tags, n_svg = {"meta"}, [], 0
    def handle_starttag(self, tag, attrs):
        self.n_svg += tag == "svg"
        if tag not in self.VOID and tag != "html":
            self.open_tags.append(tag)
    def handle_endtag(self, tag):
        assert self.open_tags and self.open_tags[-1] == tag, (tag, self.open_tags)
        self.open_tags.pop()
    def handle_startendtag(self, tag, attrs):
        pass
p = P()
p.feed(open(sys.argv[1]).read())
assert not p.open_tags, p.open_tags
assert p.n_svg >= 6, p.n_svg
EOF
run_hc bench ablation "$model" --save-csv "$tmp/none.csv" --tokens 64 --lengths 64 --rounds 1 --csv "$tmp/a.csv" --html "$tmp/a.html"
expect "no such table for figure 14" 1 'none.csv'
plan_end
