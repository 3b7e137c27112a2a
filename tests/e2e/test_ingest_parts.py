"""`hcache ingest --chat` of a file longer than a message may be: it is cut into overlapping parts
at natural borders, and a client of the server finds the state of each part by sending it as a
message."""
import json
import os
import subprocess

from serve_client import HC, SAVING, Server
from tap import PATIENCE, check, end, equal, scratch

MODEL = "models/demo"
tmp = scratch("parts")
store, path = os.path.join(tmp, "store"), os.path.join(tmp, "book.txt")
paragraphs = [" ".join(f"Sentence {i} of paragraph {p} tells that the Öresund is wide." for i in range(3 + p % 4)) for p in range(24)]
text = "\n\n".join(paragraphs) + "\n"
with open(path, "w") as f:
    f.write(text)


def ingest(*options, file=path):
    return subprocess.run([HC, "ingest", MODEL, "--store", store, "--save", "kv", *SAVING, *options, file], capture_output=True,
                          text=True, timeout=PATIENCE)


def parts(*options):
    p = ingest("--json", *options)
    return json.loads(p.stdout)["files"] if p.returncode == 0 else p


found = parts("--chat", "system", "--part-tokens", "300", "--overlap-tokens", "40")
raw = text.encode()
spans = [(p["from"], p["to"]) for p in found]
check("a long file becomes parts", len(found) > 3 and all(p["file"] == path for p in found), found)
check("no part has more tokens than was said", all(0 < p["tokens"] <= 300 for p in found), found)
check("together they are the whole file", spans[0][0] == 0 and spans[-1][1] == len(raw) and
      all(b[0] <= a[1] < b[1] for a, b in zip(spans, spans[1:])), spans)
check("a part ends behind a paragraph", all(raw[:to].endswith(b"\n\n") for _, to in spans[:-1]), spans)
check("a part shares its end with the next one, and begins with a sentence", all(a[1] > b[0] for a, b in zip(spans, spans[1:])) and
      all(raw[start:].startswith(b"Sentence ") for start, _ in spans), spans)
again = parts("--chat", "system", "--part-tokens", "300", "--overlap-tokens", "40")
check("the second time everything is there", [p["from"] for p in again] == [p["from"] for p in found] and
      all(p["cached_tokens"] >= (p["tokens"] - 1) // 64 * 64 for p in again), again)
line = ingest("--chat", "system", "--part-tokens", "300").stdout.splitlines()[0]
check("the lines name the bytes", line.startswith(f"{path}, bytes 0 to {spans[0][1]}: "), line)

no_overlap = parts("--chat", "user", "--part-tokens", "300", "--overlap-tokens", "0")
check("no overlap: each byte once", [p["from"] for p in no_overlap[1:]] == [p["to"] for p in no_overlap[:-1]], no_overlap)
half = parts("--chat", "user")
check("a file of more than half the context is split by itself", len(half) >= 2 and all(p["tokens"] <= 1024 for p in half), half)
short = os.path.join(tmp, "short.txt")
with open(short, "w") as f:
    f.write(paragraphs[0])
whole = json.loads(ingest("--json", "--chat", "user", file=short).stdout)["files"]
check("a short one is not", len(whole) == 1 and "from" not in whole[0], whole)
solid = os.path.join(tmp, "solid.txt")
with open(solid, "w") as f:
    f.write("ö" * 4000)
p = ingest("--json", "--chat", "user", "--part-tokens", "100", file=solid)
solids = json.loads(p.stdout)["files"]
check("without any border a part ends between two characters", p.returncode == 0 and len(solids) > 3 and
      all(s["from"] % 2 == 0 and s["to"] % 2 == 0 for s in solids), p)
for options, word in ((["--part-tokens", "300"], "needs --chat"), (["--chat", "user", "--part-tokens", "3"], "leaves no room")):
    p = ingest(*options)
    check(f"refused: {' '.join(options)}", p.returncode in (1, 2) and word in p.stderr, p)

server = Server(MODEL, "--store", store, *SAVING)
for k in (0, len(found) - 1):
    start, to = spans[k]
    r = server.post("/v1/chat/completions", {"max_tokens": 4, "messages": [
        {"role": "system", "content": raw[start:to].decode()}, {"role": "user", "content": "What is wide?"}]})[2]
    cached = r["usage"]["prompt_tokens_details"]["cached_tokens"]
    check(f"a client that sends part {k} as its system message finds it", cached >= found[k]["tokens"] // 64 * 64 - 64, (cached, found[k]))
equal("the server ends well", server.stop(), 0)
end()
