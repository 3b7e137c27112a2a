# test_bench.sh - `hcache bench restore` and `ablation` run to their end on a tiny model and write
# their tables and files. Speeds are not checked. If the store is too slow to emulate another
# platform's store, that is reported and the parts that need it are left out.
. tests/e2e/lib.sh

model=synth:tiny-mha
restore=(bench restore "$model" --store "$tmp/store" --lengths 64,256 --rounds 1)

run_hc "${restore[@]}" --csv "$tmp/t.csv"
check "restore: a row per length and method" test "$rc" -eq 0 -a "$(wc -l <"$tmp/t.csv")" -eq 13
check "the same number of fields in each" test "$(awk -F, '{print NF}' "$tmp/t.csv" | sort -u | wc -l)" -eq 1
check "how much faster auto is" grep -qE '^ +auto: [0-9.]+x kv, .* less stored than kv' "$tmp/out"
run_hc "${restore[@]}" --methods kv,auto --as a100-1ssd:llama-2-13b
check "as another platform: says what it throttles to, or that this store is too slow for it" \
    grep -qE '^storage throttled to [0-9.]+ MB/s|this store reads [0-9.]+ MB/s: too slow to be throttled to' "$tmp/out" "$tmp/err"
run_hc "${restore[@]}" --as a100-9ssd
expect "as no platform" 1 'a100-9ssd'
run_hc "${restore[@]}" --as a100-1ssd:llama-9
expect "as no model" 1 'llama-9'
run_hc "${restore[@]}" --lengths 63
expect "less than a chunk" 2 "lengths: '63' is not a whole number from 64 to"
run_hc bench save "$model" --batches 1,2b
expect "a batch that is none" 2 "batches: '2b' is not a whole number from 1 to"
run_hc bench save "$model" --at-end --batches 2 --context 128 --steps 8 --rounds 1 --store memory --csv "$tmp/end.csv"
check "saving at the end: a row for each arm" test "$rc" -eq 0 -a \
    "$(cut -d, -f1-4 "$tmp/end.csv" | tail -3 | paste -sd ' ')" = "2,128,8,none 2,128,8,overlapped 2,128,8,at-end"
check "nothing was left unsaved" test "$(tail -3 "$tmp/end.csv" | cut -d, -f9 | sort -u)" = 0
run_hc bench restore "$model" --store memory --lengths 64 --rounds 1
check "a store in memory is read in place: no rate is printed for it" grep -qE '; store in memory, read in place; ' "$tmp/out"
run_hc bench restore "$model" --store memory --lengths 64 --sweep 1
expect "a sweep adds DRAM itself" 2 'adds DRAM itself'
run_hc bench restore "$model" --store memory --lengths 64 --throttle 1MB
expect "what cannot be throttled" 2 "cannot be throttled"

# A killed benchmark leaves a directory, which the next benchmark removes. Directories of other
# programs stay.
mkdir -p "$tmp/var/hcache-bench-dead/below" "$tmp/var/hcache-bench-live" "$tmp/var/hcache-bench-new" "$tmp/var/other"
touch "$tmp/var/hcache-bench-dead/below/file"
touch -d '1 hour ago' "$tmp"/var/hcache-bench-{dead,live}
exec 9<"$tmp/var/hcache-bench-live"
flock 9
TMPDIR=$tmp/var run_hc bench restore "$model" --lengths 64 --rounds 1
exec 9<&-
check "what a killed benchmark has left is removed, and nothing else" \
    test "$rc" -eq 0 -a "$(cd "$tmp/var" && echo *)" = "hcache-bench-live hcache-bench-new other"

run_hc "${restore[@]}" --sweep 2 --seed 3 --csv "$tmp/s.csv"
check "sweep: a row per case, or it says which promise was broken" \
    test "$(wc -l <"$tmp/s.csv")" -eq 3 -a \( "$rc" -eq 0 -o "$(grep -c 'slower than the best' "$tmp/err")" -eq 1 \)
run_hc "${restore[@]}" --sweep 1 --skip 1 --seed 3 --csv "$tmp/s2.csv"
check "in pieces it draws the same cases" cmp -s <(tail -1 "$tmp/s.csv" | cut -d, -f1-4) <(tail -1 "$tmp/s2.csv" | cut -d, -f1-4)
run_hc "${restore[@]}" --sweep 2 --seed 3 --load busy,reader --damage --csv "$tmp/s3.csv"
check "with other work and damage it draws the same stores" \
    cmp -s <(tail -2 "$tmp/s.csv" | cut -d, -f1-4) <(tail -2 "$tmp/s3.csv" | cut -d, -f1-4)
check "each case has a load of those named, and the summary counts them all" \
    test "$(tail -n +2 "$tmp/s3.csv" | grep -cE ',(busy|reader),[01](,[0-9.]+){9}(,[0-9.]*){3}$')" -eq 2 -a "$(awk '$1 == "all" && $2 != "restores" {print $2}' "$tmp/out")" = 2
run_hc "${restore[@]}" --sweep 1 --load busy3
expect "a load that is none" 2 "load 'busy3': must be none, busy, busy2 or reader"

run_hc bench ablation "$model" --store "$tmp/store" --tokens 128 --lengths 64,128 --rounds 1 --csv "$tmp/a.csv" --html "$tmp/a.html"
check "ablation" test "$rc" -eq 0
left_out=$(sed -n 's/^\([0-9a-z]*\) .* left out: this store is too slow$/\1/p' "$tmp/out")
figures() { { tail -n +2 "$tmp/a.csv" | cut -d, -f1 && echo "$left_out"; } | sort -u | sed '/^$/d' | paste -sd' '; }
check "every figure is in the CSV, or said to be left out" test "$(figures)" = "11ac 11df 11gi 12 6.1.3"
check "eleven fields in each row" test "$(awk -F, '{print NF}' "$tmp/a.csv" | sort -u)" = 11
check "the report is well-formed" python3 - "$tmp/a.html" "$left_out" <<'EOF'
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
assert p.n_svg >= (1 if sys.argv[2] else 6), p.n_svg
EOF
run_hc bench ablation "$model" --save-csv "$tmp/none.csv" --tokens 64 --lengths 64 --rounds 1 --csv "$tmp/a.csv" --html "$tmp/a.html"
expect "no such table for figure 14" 1 'none.csv'
check "is known before anything is measured" test ! -s "$tmp/out"

# Figure 14 measures nothing: it plots the results of `bench save`.
head='batch,arm,rounds,steps,median_ms,p99_ms,mean_ms,median_overhead_pct,paired_overhead_pct,p99_overhead_pct,mb_per_s,shed'
row() { echo "$1,$2,5,128,$3,$4,$3,0.9,1.1,2.2,10.0,0"; }
{ echo "$head"; row 8 off 10.5 11; row 8 save 10.625 11.5; row 32 off 20 21; row 32 save 20.25 22; } >"$tmp/save.csv"
fig14=(bench ablation "$model" --figures 14 --csv "$tmp/f.csv" --html "$tmp/f.html" --save-csv)
run_hc "${fig14[@]}" "$tmp/save.csv"
check "figure 14 from a table" test "$rc" -eq 0 -a "$(grep -c 'store reads\|memory reserved' "$tmp/f.html")" -eq 0
check "a group per batch, a series per arm, each value where it belongs" python3 - "$tmp/f.html" <<'EOF'
import re, sys
page = open(sys.argv[1]).read()
svg = re.search(r"<svg.*?</svg>", page, re.S).group(0)
for name in ("8", "32", "off", "save"):
    assert f">{name}<" in svg, name
rows = [re.findall(r"<td[^>]*>(.*?)</td>", r) for r in re.findall(r"<tr>(.*?)</tr>", page, re.S)]
assert ["32", "save", "20.2", "22.0", "+0.9 %", "+1.1 %", "+2.2 %"] in rows, rows
assert len([r for r in rows if len(r) == 7 and r[0] in ("8", "32")]) == 4, rows
EOF
table() { # table NAME PATTERN: the table in $tmp/bad.csv is refused
    run_hc "${fig14[@]}" "$tmp/bad.csv"
    expect "figure 14: $1" 1 "bad.csv.*$2"
}
echo 'a,b,c' >"$tmp/bad.csv" && table "another table" 'not a table of hcache bench save'
echo "$head" >"$tmp/bad.csv" && table "no rows" 'has no rows'
{ cat "$tmp/save.csv"; echo '8,save,nonsense'; } >"$tmp/bad.csv" && table "a bad row" 'line 6 is not a row'
{ echo "$head"; for i in $(seq 65); do row "$i" off 1 1; done; } >"$tmp/bad.csv" && table "too many rows" 'more than 64 rows'
TMPDIR=$tmp run_hc bench stream synth:tiny-mha --weights-memory 100%,50%,0% --batches 1,3 --prefill 70 --tokens 5 --json
check "bench stream: three budgets, three rows each, the same logits" json_is \
    '[len(j["rows"]), j["digests_equal"], len({r["logits_digest"] for r in j["rows"]}), sum(r["streamed_bytes"] == 0 for r in j["rows"])]' \
    '9 True 3 3'
check "what is streamed is the layers that do not stay" json_is \
    '[r["streamed_bytes"] * 2 for r in j["rows"][3:6]] == [r["streamed_bytes"] for r in j["rows"][6:]]' True
check "every row has a rate, a bound and a peak" json_is \
    'all(r["tokens_per_s"] > 0 and r["of_bound"] > 0 and r["peak_rss"] > 1e6 for r in j["rows"]) and all(r["disk_bytes_per_s"] > 0 and r["disk_checked_bytes_per_s"] > 0 and r["of_checked_reads"] > 0 for r in j["rows"] if r["streamed_bytes"])' True
check "the temporary packed file is gone" test -z "$(ls "$tmp"/*.packed 2>/dev/null)"
run_hc bench hybrid --ratio 2 --device-memory 0 --host-memory 20TB --prompt 16384 --tokens 64 --batch 256 --json
check "bench hybrid: no arm is better than auto, and KV : ACT is x - 1/2" json_is \
    '[(a := {r["arm"]: r for r in j["arms"]}) and max(r["tokens_per_s"] for r in j["arms"]) == a["auto"]["tokens_per_s"],
     round(a["auto"]["kv_host"] / a["auto"]["act_host"], 1), round(a["kv"]["link_bytes"] / a["act"]["link_bytes"], 3)]' 'True 1.5 2.0'
run_hc bench hybrid run "$model" --batch 3 --prompt 128 --tokens 2 --json
check "bench hybrid run: five arms, the same logits, the bytes of the policy" json_is \
    '[len(j["rows"]), len({r["logits_digest"] for r in j["rows"]}), all(r["link_bytes"] == r["link_bytes_policy"] for r in j["rows"])]' \
    '5 1 True'
check "... nothing comes for blocks on the device, half for activations" json_is \
    '[(a := {r["arm"]: r["link_bytes"] for r in j["rows"]}) and a["device"], a["kv"] == 4 * 3 * 2 * 64 * 64 * 2 * 4, a["kv"] / a["act"]]' \
    '0 True 2.0'
run_hc bench hybrid run "$model" --batch 3 --prompt 64 --tokens 2 --arms kv,hybrid --json
check "... and only the arms that were asked for" json_is '[r["arm"] for r in j["rows"]]' 'device kv hybrid'
run_hc bench hybrid run "$model" --arms kv,none
expect "an arm that is none" 2 "arms: 'none' is none of kv"
run_hc bench hybrid run "$model" --ratio none
expect "a ratio that is none" 2 "ratio"
run_hc bench hybrid --shape none
expect "a shape that is none" 1 "unknown shape 'none'"
run_hc bench ablation "$model" --lengths 64,12x
expect "a length that is none" 2 "lengths: '12x' is not a whole number from 64 to"
run_hc bench ablation "$model" --figures 15
expect "a figure that is none" 2 "'15' is none of"
plan_end
