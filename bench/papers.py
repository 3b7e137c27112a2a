#!/usr/bin/env python3
"""Every figure of the papers that needs no GPU: the paper's numbers and this program's, on one
page.

  bench/papers.py [--out DIR] [--only fig3,tab1,...] [--quick] [--shorten N] [--program FILE]
                  [--model M --text F]

Each entry of FIGURES names its program, parameters and seed.  The labels of entries mean:

  run            the generator, the policy or the server itself
  run at scale   really run, on this machine, with lengths, model or storage scaled to it
  modelled       computed from the paper's hardware table; nothing ran

An entry writes DIR/ID.csv (name, paper, ours, note). DIR/index.html shows every existing CSV, and
names the entries that were not run. --quick runs only the entries that take seconds.  --shorten N
makes minutes of hours: Figures 9, 10 and 15 get one Nth of their time, Figures 11, 12, 14 and 20 fewer
rounds and shorter histories, and hybridrun fewer steps and ratios. Their rows then say so.  An entry
that fails does not end the others; the exit status is 1 then."""
import argparse
import csv
import html
import json
import os
import re
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))


HC = MODEL = TEXT = CONTEXT = None  # --program, --model, --text, --context
SHORTEN = 1  # --shorten


class Failed(Exception):
    """Raised when a program that an entry runs has failed."""


def output(*words, ok=(0,)):
    p = subprocess.run([str(w) for w in words], stdout=subprocess.PIPE, text=True)
    if p.returncode not in ok:
        raise Failed(f"{' '.join(map(str, words))}: exit status {p.returncode}")
    return p.stdout


def rows_of(path):
    with open(path) as f:
        return list(csv.DictReader(f))


# --- HCache, section 2: the loads -----------------------------------------------------------------

LOAD = ["--describe", "--token-scale", 1, "--time-scale", 1, "--seconds", 600, "--rate", 1000, "--seed", 2024]


def described(*options):
    text = output(HC, "bench", "serve", *LOAD, *options)
    return {k: float(v) for k, v in (line.split() for line in text.splitlines())}


def figure3(out):
    s = described("--workload", "chats", "--max-prompt", 16384)
    return [("new tokens of a round", "66.8", s["new_tokens"], "mean"),
            ("tokens of an answer", "358.8", s["answer_tokens"], "mean"),
            ("conversations over 2,500 tokens", "0.5", s["over_2500"], "share"),
            ("median conversation", "2,500", s["history_p50"], "tokens, cut at 16,384")]


def table1(out):
    rows = []
    for task, paper in (("paper-assistant", (10603.5, 142.7, 404.8)), ("gsm-100", (5451.7, 77.4, 4.3)),
                        ("quality", (7053.9, 92.4, 19.2)), ("mixed", (16340.2, 44.7, 50.2))):
        s = described("--workload", "documents", "--task", task, "--documents", 20000, "--zipf", 0,
                      "--max-prompt", 200000)
        for what, key, p in zip(("document", "question", "answer"), ("document_tokens", "new_tokens", "answer_tokens"),
                                paper):
            rows.append((f"{task}: {what}", p, s[key], "mean tokens"))
    return rows


# --- HCache, modelled with the paper's platforms ---------------------------------------------------

def planned(shape, platform, history, new=0):
    text = output(HC, "plan", "--shape", shape, "--platform", platform, "--history", history, "--new", new, "--json")
    return {m["method"]: m for m in json.loads(text)["methods"]}


MODELS = (("7B", "llama-2-7b", "a100-4ssd"), ("13B", "llama-2-13b", "a100-4ssd"), ("30B", "opt-30b", "a100x4-4ssd"))


def figure4(out):
    """Time to first token, divided by that with the history still in memory, for L-Eval's mean lengths.
    The model counts only the kernels' time, so its ideal is faster than the paper's engine and its
    ratios are larger."""
    rows = []
    for name, shape, platform in MODELS:
        m = planned(shape, platform, 16340, 45)
        ideal = m["kv"]["predicted_ms"] - m["kv"]["restore_ms"]
        for method, paper in (("recompute", "20 to 26"), ("kv", "6.5 to 13"), ("auto", "")):
            rows.append((f"{name}: {method}", paper, m[method]["predicted_ms"] / ideal, "times the ideal"))
    return rows


def table3(out):
    rows = []
    for (name, shape, platform), paper, size, kv in zip(
            MODELS, ("31 H + 1 KV", "36 H + 4 KV", "40 H + 8 RE"), (132, 210, 280), (256, 400, 672)):
        m = planned(shape, platform, 1024)
        p = m["paper"]
        parts = [f"{p[k]} {s}" for k, s in (("recompute", "RE"), ("hidden", "H"), ("kv", "KV")) if p[k]]
        rows.append((f"{name}: the paper's form of plan", paper, " + ".join(parts), "at 1,024 tokens"))
        for method, what, value in (("paper", "hidden states", size), ("kv", "KV", kv)):
            rows.append((f"{name}: {what} of a token", value, m[method]["stored_bytes_per_token"] / 2048,
                         "KiB at one byte an element; layer 0 needs no hidden states"))
    return rows


def snapshots(out):
    """Section 6.3.3: the time to compute a layer of 1,024 tokens, and the rate at which the layer's
    hidden states (2 bytes an element) must leave the GPU in that time."""
    rows = []
    for name, shape, platform, hidden in (("7B", "llama-2-7b", "a100-4ssd", 4096), ("13B", "llama-2-13b", "a100-4ssd", 5120)):
        m = planned(shape, platform, 1024)["recompute"]
        ms = m["restore_ms"] / m["recompute"]
        paper = ("3", "3") if name == "13B" else ("", "")
        rows.append((f"{name}: a layer of 1,024 tokens", paper[0], ms, "ms"))
        rows.append((f"{name}: its hidden states", paper[1], 1024 * hidden * 2 / (ms * 1e6), "GB/s"))
    return rows


# --- AttentionStore --------------------------------------------------------------------------------

def placement(out):
    """The policies' own code on a simulated clock; 9,000 chats behind one server."""
    j = json.loads(output(HC, "bench", "tiers", "--figures", "13,14,15,16,17,21,22,23,24", "--seed", 1, "--json"))
    return [(f"{r['figure']}: {r['row']}", r["paper"], r["ours"], r["why"]) for r in j["figures"] if r["figure"]]


def figure18(out):
    """One prompt of 1,000 tokens, STORED/NEW; the paper has batches of 16."""
    rows = []
    for stored in (500, 600, 700, 800, 900):
        m = planned("llama-2-13b", "a100-dram", stored, 1000 - stored)
        recompute = m["recompute"]["predicted_ms"]
        for method, what in (("kv", "keys and values"), ("auto", "the best plan")):
            rows.append((f"{stored}/{1000 - stored}: {what}", "", m[method]["predicted_ms"] / recompute,
                         "of the time of recomputing; the paper gives bars without numbers"))
    return rows


def overflow(out):
    """Perplexity behind the window's end. The paper has LLaMA-13B on WikiText-2."""
    if TEXT is None or MODEL is None:
        return None
    ppl = {}
    for how in ("recompute", "decoupled", "stale"):
        ppl[how] = json.loads(output(HC, "ppl", MODEL, TEXT, "--overflow", how, "--context", CONTEXT, "--max-tokens", 8 * CONTEXT,
                                     "--json"))["ppl"]
    return [(f"{name}, over recomputed", paper, ppl[how] / ppl["recompute"], f"perplexity {ppl[how]:.2f}")
            for name, how, paper in (("decoupled positions (AS)", "decoupled", 1.00), ("recomputed (TT)", "recompute", 1),
                                     ("stale positions (NKVT)", "stale", 336))]


def documents(out):
    """Six tasks for each document; the first one's state serves the others."""
    text = output(sys.executable, os.path.join(HERE, "tier_figures.py"), MODEL or "synth:bench-220m", "documents",
                  "--program", HC)
    found = re.findall(r"(.*): first token ([\d.]+) ms, recomputed ([\d.]+) ms", text)
    if not found:
        raise Failed("tier_figures.py printed no times")
    return [(what, "0.05 at 28K tokens", float(x) / float(y), f"of the first token's time with recomputing, {y} ms")
            for what, x, y in found]


# --- HybridServe, modelled --------------------------------------------------------------------------

def hybrid(out):
    """Uses the platform's own x, and the x that the paper's throughputs and its best ratio imply
    (docs/RESTORATION.md)."""
    rows = []
    for x in (0, 1.2, 1.96):
        for r in json.loads(output(HC, "bench", "hybrid", "--figures", "--ratio", x, "--json"))["figures"]:
            rows.append((f"{r['figure']}: {r['row']}", "" if r["paper"] is None else r["paper"], r["ours"],
                         f"x = {x or 'of the platform'}; {r['why']}"))
    return rows


# --- HybridServe, run at this machine's scale --------------------------------------------------------

def hybrid_run(out):
    """Contexts on the host and a link that is slowed down; at x = 1.4 the ideal mixture has 0.737
    of KV's traffic."""
    rows = []
    short = ("--batch", 8, "--prompt", 256, "--tokens", 4) if SHORTEN > 1 else ()
    note = "; 8 contexts of 256 tokens and 4 steps instead of 16 of 512 and 8" if short else ""
    for x in (1.4,) if short else (1.4, 2, 4):
        j = json.loads(output(HC, "bench", "hybrid", "run", "--ratio", x, "--json", *short))
        rows += [(f"11: x = {x}: R2 of the seconds of {name}", 0.99, round(j[key], 4), "1 to 16 blocks, the fastest of five")
                 for name, key in (("a projection", "project_r2"), ("a load", "link_r2"))]
        rows.append((f"x = {x}: traffic of KV over the mixture's", round((x + 0.5) / x, 3),
                     round(j["traffic_kv_over_hybrid"], 3), f"the paper's column is x + 1/2 over x{note}"))
        for r in j["rows"]:
            rows.append((f"x = {x}: {r['arm']}, ms a step", "", r["time_s"] * 1e3,
                         f"{r['predicted_s'] * 1e3:.1f} predicted; {r['over_kv']:.2f} times as fast as KV; "
                         f"{100 * r['act_share']:.0f} % ACT, {r['link_bytes'] / 1e6:.1f} MB over the link{note}"))
    return rows


# --- HCache, run at this machine's scale -----------------------------------------------------------

def ablation(figures):
    def make(out):
        path = os.path.join(out, "ablation.csv")
        short = ("--rounds", 1, "--tokens", 512, "--lengths", "256,512,1024") if SHORTEN > 1 else ("--rounds", 3)
        note = "; 1 round instead of 3, 512 tokens instead of 1,024, lengths up to 1,024 instead of 4,096" if SHORTEN > 1 else ""
        output(HC, "bench", "ablation", *short, "--figures", ",".join(figures), "--csv", path, "--html",
               os.path.join(out, "ablation.html"))
        rows, papers = [], {"11ac": "1.33 to 1.81, 5.04 to 9.05", "11df": "1.7 to 2.66, 2.3 to 6.1",
                            "11gi": "1.6 to 1.9, 5 and more", "12": "1.45 to 2.66, -"}
        groups = {}
        for r in rows_of(path):
            groups.setdefault((r["figure"], r["setting"], r["tokens"]), {})[r["method"]] = r
        for (figure, setting, tokens), by in groups.items():
            if {"auto", "kv", "recompute"} <= set(by):
                ms = {k: float(v["ms"]) for k, v in by.items()}
                rows.append((f"{figure} {setting}, {tokens} tokens", papers.get(figure, ""),
                             f"{ms['kv'] / ms['auto']:.2f}, {ms['recompute'] / ms['auto']:.2f}",
                             f"times faster than KV, than recomputing; {by['auto']['kind']}; {by['auto']['plan']}{note if by['auto']['kind'] != 'modelled' else ''}"))
        return rows
    return make


def figure14(out):
    path = os.path.join(out, "save.csv")
    short = ("--batches", "2,8", "--rounds", 3, "--steps", 64) if SHORTEN > 1 else ()
    output(HC, "bench", "save", "--csv", path, *short, ok=(0, 1))
    note = "; 3 rounds of 64 steps instead of 5 of 128" if short else ""
    return [(f"batch {r['batch']}, {r['arm']}", {"direct": "to + 34 %", "save": "as without"}.get(r["arm"], ""),
             float(r["median_overhead_pct"]), f"% of a step's median time{note}")
            for r in rows_of(path) if r["arm"] != "off"]


def figure20(out):
    """A job has 16 prompts and 20 steps in the paper, and 4 prompts here; it ends when its state is
    durable."""
    rows = []
    rounds = 2 if SHORTEN > 1 else 5
    for n in (1024, 1600) if SHORTEN > 1 else (1024, 1216, 1408, 1600):
        path = os.path.join(out, f"at-end-{n}.csv")
        output(HC, "bench", "save", "--at-end", "--save", "kv", "--batches", 4, "--context", n, "--steps", 20,
               "--rounds", rounds, "--csv", path)
        ms = {r["arm"]: float(r["job_ms"]) for r in rows_of(path)}
        rows.append((f"prompts of {n}: overlapped", "-13 to -15 %", 100 * (ms["overlapped"] / ms["at-end"] - 1),
                     f"% of the time with saving at the end; that is {100 * (ms['at-end'] / ms['none'] - 1):+.1f} % over "
                     f"not saving; {rounds} rounds"))
    return rows


def served(only, seconds, drain):
    def make(out):
        options = ("--seconds", max(1, seconds // SHORTEN), "--drain", drain)
        note = f"; a load of {options[1]} s instead of {seconds}" if SHORTEN > 1 else ""
        folder = os.path.join(out, "serve-" + only)
        output(sys.executable, os.path.join(HERE, "serve_figures.py"), "--out", folder, "--only", only, "--program", HC,
               *options)
        papers = {"chats": "KV 1.27 to 1.90, recompute 2.21 to 3.57", "documents": "KV 1.62 to 1.93, recompute 2.66 to 5.73",
                  "skew": "KV 1.67 to 1.15, recompute 1.98 and more", "rates": "KV 1.27 to 1.90, recompute 2.21 to 3.57"}
        rows = []
        for r in rows_of(os.path.join(folder, "serve-figures.csv")):
            rows.append((f"{r['workload']} {r['server']}", papers[only] if r["server"] == "auto" else "",
                         float(r["ttft_p50_ms"]), f"ms to the first token (median of {r['answered']}); between tokens "
                         f"{r['tbt_p50_ms']} ms{note}"))
        return rows
    return make


# id, paper, title, label, whether it takes only seconds, function
FIGURES = (
    ("fig3", "HCache", "Figure 3: lengths of conversations", "run", True, figure3),
    ("tab1", "HCache", "Table 1: lengths of long contexts", "run", True, table1),
    ("fig4", "HCache", "Figure 4: overhead of restoring", "modelled", True, figure4),
    ("tab3", "HCache", "Table 3: plans and bytes", "modelled", True, table3),
    ("hybrid", "HybridServe", "Figures 3, 4, 6 and 12 to 15", "modelled", True, hybrid),
    ("hybridrun", "HybridServe", "Figure 11, and mixtures of KV and activations", "run at scale", False, hybrid_run),
    ("fig9", "HCache", "Figure 9: chats, by rate of sessions", "run at scale", False,
     served("rates", seconds=60, drain=20)),
    ("fig10", "HCache", "Figure 10: long contexts", "run at scale", False,
     served("documents", seconds=400, drain=30)),
    ("fig11", "HCache", "Figure 11: platforms, storage, lengths", "run at scale; a-c modelled", False,
     ablation(("11ac", "11df", "11gi"))),
    ("fig12", "HCache", "Figure 12: scheduler", "run at scale", False,
     ablation(("12",))),
    ("fig14", "HCache", "Figure 14: two-stage saving", "run at scale", False, figure14),
    ("fig15", "HCache", "Figure 15: reuse on the device, by skew", "run at scale", False,
     served("skew", seconds=400, drain=30)),
    ("snapshots", "HCache", "6.3.3: rate of hidden states", "modelled", True, snapshots),
    ("as13", "AttentionStore", "Figures 13 to 17 and 21 to 24", "the policies run on a simulated clock", False, placement),
    ("as18", "AttentionStore", "Figure 18: recomputing beside loading", "modelled", True, figure18),
    ("fig20", "AttentionStore", "Figure 20: saving overlapped with computing", "run at scale", False, figure20),
    ("as25", "AttentionStore", "Figure 25: tasks on long documents", "run at scale", False, documents),
    ("astab1", "AttentionStore", "Table 1: perplexity behind the window", "run at scale", False, overflow),
)


# --- the page --------------------------------------------------------------------------------------

def bar(value, top):
    try:
        x = float(str(value).replace(",", ""))
    except ValueError:
        return ""
    w = max(1, round(160 * x / top)) if top > 0 and x > 0 else 0
    return f'<svg width="160" height="10"><rect width="{w}" height="10" fill="#357"/></svg>'


def number(v):
    try:
        return f"{float(v):,.4g}"
    except ValueError:
        return str(v)


def section(out, figure):
    name, paper, title, label, _, _ = figure
    path = os.path.join(out, name + ".csv")
    text = f"<h2>{paper}, {html.escape(title)}</h2><p><i>{label}</i>"
    if not os.path.exists(path):
        return text + ": not run here.</p>"
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(os.path.getmtime(path)))
    rows = rows_of(path)
    tops = {}
    for r in rows:
        if re.fullmatch(r"[\d.]+", r["ours"]):
            tops[r["note"][:8]] = max(tops.get(r["note"][:8], 0), float(r["ours"]))
    lines = "".join(
        f"<tr><td>{html.escape(r['name'])}</td><td>{html.escape(r['paper'])}</td><td>{number(r['ours'])}</td>"
        f"<td>{bar(r['ours'], tops.get(r['note'][:8], 0))}</td><td>{html.escape(r['note'])}</td></tr>" for r in rows)
    return (text + f", {when}</p><table><tr><th></th><th>paper</th><th>ours</th><th></th><th></th></tr>{lines}</table>")


def page(out):
    with open(os.path.join(out, "index.html"), "w") as f:
        f.write('<!doctype html><html lang="en"><meta charset="utf-8"><title>The papers\' figures</title><style>'
                "body{font:15px/1.5 sans-serif;max-width:70em;margin:2em auto;padding:0 1em}"
                "td,th{padding:1px 12px 1px 0;text-align:left;vertical-align:top}</style>"
                "<h1>The papers' figures, on this machine</h1><p>«Run» and «run at scale» really ran. «Modelled» is "
                "computed from the paper's hardware table. No GPU has run anything.</p>")
        f.write("".join(section(out, g) for g in FIGURES) + "</html>\n")


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--out", default="build/papers")
    a.add_argument("--program", default="build/hcache")
    a.add_argument("--model", help="model of the entry astab1, and of as25 instead of synth:bench-220m")
    a.add_argument("--text", help="text of the entry astab1")
    a.add_argument("--context", type=int, default=256, help="context of the entry astab1")
    a.add_argument("--only", help="ids of the entries to run, separated by commas")
    a.add_argument("--quick", action="store_true", help="only the entries that take seconds")
    a.add_argument("--shorten", type=int, default=1, metavar="N", help="give served loads one Nth of their time, and the others fewer rounds and shorter histories")
    a = a.parse_args()
    global HC, MODEL, TEXT, CONTEXT, SHORTEN
    HC, MODEL, TEXT, CONTEXT, SHORTEN = a.program, a.model, a.text, a.context, a.shorten
    known = [g[0] for g in FIGURES]
    wanted = a.only.split(",") if a.only else known
    for w in wanted:
        if w not in known:
            sys.exit(f"papers: there is no {w}; there are {', '.join(known)}")
    os.makedirs(a.out, exist_ok=True)
    failed = []
    for name, paper, title, label, quick, make in FIGURES:
        if name not in wanted or (a.quick and not quick):
            continue
        print(f"{paper}, {title} ({label})", flush=True)
        try:
            rows = make(a.out)
        except Failed as e:
            failed.append(name)
            print(f"  failed: {e}", flush=True)
            continue
        if rows is None:
            print("  not run: it needs --text FILE and --model MODEL")
            continue
        with open(os.path.join(a.out, name + ".csv"), "w", newline="") as f:
            w = csv.writer(f)
            w.writerow(("name", "paper", "ours", "note"))
            w.writerows((n, p, f"{o:.4g}" if isinstance(o, float) else o, note) for n, p, o, note in rows)
        for n, p, o, note in rows:
            print(f"  {n:44} {str(p):>28} {number(o):>14}  {note}", flush=True)
        page(a.out)
    page(a.out)
    print(os.path.join(a.out, "index.html"))
    if failed:
        sys.exit(f"papers: failed: {', '.join(failed)}")


main()
