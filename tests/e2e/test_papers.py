"""bench/papers.py, which makes the page of the papers' figures: its quick entries run, and the
loads have the lengths that the papers give.
"""
import csv
import os
import subprocess
import sys
import tempfile

from serve_client import HC
from tap import check, end

with tempfile.TemporaryDirectory() as out:
    p = subprocess.run([sys.executable, "bench/papers.py", "--quick", "--out", out, "--program", HC],
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    check("the quick figures are made", p.returncode == 0, p.stdout[-500:])

    def rows(name):
        with open(os.path.join(out, name + ".csv")) as f:
            return {r["name"]: r for r in csv.DictReader(f)}
    for row in [r for r in rows("tab1").values()] + [rows("fig3")[n] for n in ("new tokens of a round",
                                                                               "tokens of an answer")]:
        check(f"{row['name']}: within 4 % of the paper's mean", abs(float(row["ours"]) / float(row["paper"]) - 1) < 0.04,
              row)
    plans = rows("tab3")
    check("7B and 13B: the paper's plans", all(plans[f"{m}: the paper's form of plan"]["paper"] ==
                                               plans[f"{m}: the paper's form of plan"]["ours"] for m in ("7B", "13B")))
    hybrid = [r for n, r in rows("hybrid").items()]
    check("HybridServe's figures: mixtures beat keys and values alone", len(hybrid) >= 18 and
          float(rows("hybrid")["12: mixture over KV alone, tokens/s"]["ours"]) > 1.2, hybrid)
    with open(os.path.join(out, "index.html")) as f:
        page = f.read()
    check("the page has them, and names what did not run", "31 H + 1 KV" in page and "not run here" in page)
    p = subprocess.run([sys.executable, "bench/papers.py", "--only", "fig99", "--out", out], stderr=subprocess.PIPE,
                       text=True)
    check("an unknown figure is refused by name", p.returncode != 0 and "fig99" in p.stderr, p.stderr)
end()
