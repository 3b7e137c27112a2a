"""`hcache batch`: the format of its lines, errors, killing and resuming, and shared prefixes that
are computed once."""
import json
import os
import random
import resource
import signal
import subprocess

from serve_client import HC, until
from tap import PATIENCE, check, end, equal, scratch

DEMO = "models/demo"
KILLS = 10
SEED = int(os.environ.get("KILL_SEED", "1"))
tmp = scratch("batch")


def path(name):
    return os.path.join(tmp, name)


def line(custom_id, body, url="/v1/chat/completions", **more):
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body, **more})


def chat(text, **more):
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 12, **more}


def write(name, lines):
    with open(path(name), "w") as f:
        f.write("".join(x + "\n" for x in lines))
    os.utime(path(name), (1700000000, 1700000000))
    return path(name)


def command(src, out, errors=None, *options, model=DEMO):
    return [HC, "batch", model, "--in", src, "--out", out, *(["--errors", errors] if errors else []), *options]


def run(*args, **more):
    return subprocess.run(command(*args, **more), capture_output=True, text=True, timeout=PATIENCE)


def text_of(name):
    try:
        with open(path(name), "rb") as f:
            return f.read()
    except FileNotFoundError:
        return b""


def whole_lines(name):
    """Returns the lines of a file, or None if one of them is not complete."""
    text = text_of(name)
    if text and not text.endswith(b"\n"):
        return None
    return text.split(b"\n")[:-1]


def by_id(name):
    return {x["custom_id"]: x for x in map(json.loads, whole_lines(name))}


def format_of_lines():
    src = write("in", [line("one", chat("My dog is called Biscuit.")),
                       line("two", {"prompt": ["Once", [5, 6, 7]], "max_tokens": 4, "n": 2, "logprobs": 1},
                            "/v1/completions"),
                       line("hot", chat("Tell me a story.", temperature=2, n=2))])
    p = run(src, path("out"))
    equal("a job without failures: status 0", p.returncode, 0)
    got = by_id("out")
    equal("each request has its line", sorted(got), ["hot", "one", "two"])
    one = got["one"]
    check("an answer has OpenAI's form",
          one["id"].startswith("batch_req_") and one["error"] is None and one["response"]["status_code"] == 200 and
          one["response"]["body"]["object"] == "chat.completion" and
          one["response"]["body"]["choices"][0]["message"]["role"] == "assistant" and
          one["response"]["body"]["usage"]["completion_tokens"] > 0, one)
    equal("a text completion has its n answers to each prompt",
          [c["index"] for c in got["two"]["response"]["body"]["choices"]], [0, 1, 2, 3])
    texts = [c["message"]["content"] for c in got["hot"]["response"]["body"]["choices"]]
    check("sampled answers to one prompt differ", texts[0] != texts[1], texts)
    before = text_of("out")
    p = run(src, path("out"), None, "--json")
    equal("a job that is done: status 0", p.returncode, 0)
    equal("... and nothing is done again", (json.loads(p.stdout)["skipped"], json.loads(p.stdout)["generated_tokens"]),
          (3, 0))
    equal("... nor written", text_of("out"), before)
    p = run(src, "-")
    equal("standard output gets the same lines", sorted(p.stdout.encode().split(b"\n")[:-1]),
          sorted(whole_lines("out")))


FAILING = [
    ("model", line("model", chat("x", model="gpt-9")), 404, "model_not_found"),
    ("long", line("long", {"prompt": "Hello " * 9000}, "/v1/completions"), 400, "context_length_exceeded"),
    ("exact", line("exact", {"prompt": [5] * 2049, "max_tokens": 100}, "/v1/completions"), 400,
     "context_length_exceeded"),
    ("typo", line("typo", chat("x", temprature=1)), 400, "unknown_parameter"),
    ("stream", line("stream", chat("x", stream=True)), 400, "unsupported_parameter"),
    ("empty", line("empty", {"messages": []}), 400, None),
]
BAD = [("{", "invalid_json_line"), (line("", chat("x")), "invalid_custom_id"),
       (line("ok", chat("again")), "duplicate_custom_id"), (line("get", chat("x"), "/v1/nothing"), "invalid_url"),
       (line("more", chat("x"), colour="red"), "unknown_parameter")]


def what_fails():
    src = write("in", [line("ok", chat("Hello."))] + [x[1] for x in FAILING] + [x[0] for x in BAD] +
                [line("last", chat("Bye."))])
    p = run(src, path("out2"), path("errors2"))
    equal("a job with failures: status 1", p.returncode, 1)
    equal("what is right is answered all the same", sorted(by_id("out2")), ["last", "ok"])
    errors = [json.loads(x) for x in whole_lines("errors2")]
    for name, _, status, code in FAILING:
        found = [e for e in errors if e["custom_id"] == name]
        response = found[0]["response"] if len(found) == 1 else None
        check(f"{name}: the error of the request's route",
              response is not None and response["status_code"] == status and found[0]["error"] is None and
              (code is None or response["body"]["error"]["code"] == code) and response["body"]["error"]["message"],
              found)
    for number, (_, code) in enumerate(BAD, 2 + len(FAILING)):
        found = [e for e in errors if e["error"] and e["error"]["line"] == number]
        check(f"line {number} is no request: {code}",
              len(found) == 1 and found[0]["response"] is None and found[0]["error"]["code"] == code, found)
    before = text_of("out2"), text_of("errors2")
    p = run(src, path("out2"), path("errors2"))
    equal("again: failures count, and none is written twice",
          (p.returncode, text_of("out2"), text_of("errors2")), (1, *before))


def arguments():
    src = write("in", [line("a", chat("x"))])
    with open(path("letters"), "w") as f:
        f.write("my letters\n")
    p = run(src, path("letters"))
    equal("a file that is no batch's output stays as it is", (p.returncode, text_of("letters")), (1, b"my letters\n"))
    p = run(src, src)
    equal("one file for input and output is refused", p.returncode, 2)
    p = run(path("absent"), path("out3"))
    check("an absent input is named", p.returncode == 1 and "absent" in p.stderr, p.stderr)


def shared_beginnings():
    """Three documents of about 500 tokens, each with 8 questions, in turn."""
    rng = random.Random(SEED)
    documents = [[rng.randrange(5, 400) for _ in range(512)] for _ in range(3)]
    lines = [line(f"d{d} q{q}", {"prompt": documents[d] + [40 + q] * 8, "max_tokens": 4}, "/v1/completions")
             for q in range(8) for d in range(3)]
    for name, options in (("one", ["--max-sequences", "1"]), ("eight", ["--max-sequences", "8"]),
                          ("little room", ["--max-sequences", "1", "--kv-tokens", "1024"])):
        p = run(write("in", lines), path("shared " + name), None, "--json", "--max-context", "1024", *options)
        got = json.loads(p.stdout)
        equal(f"{name}: each document is computed once, each question too", got["computed_tokens"],
              3 * 512 + 24 * 8)
    equal("the answers are the same", sorted(whole_lines("shared one")), sorted(whole_lines("shared little room")))


def interrupted():
    """A killed job resumes. Its input is a pipe that stays open, so the job cannot end by itself."""
    lines = [line(f"s{i}", chat(f"Number {i}.", max_tokens=5 + 30 * i, ignore_eos=True)) for i in range(12)]
    p = subprocess.Popen(command("-", path("stopped")), stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    p.stdin.write("".join(x + "\n" for x in lines).encode())
    p.stdin.flush()
    check("answers are there before the input has ended", until(lambda: text_of("stopped").count(b"\n") > 2))
    other = run(write("in", lines), path("stopped"))
    check("a second job on the same output is refused", other.returncode == 1 and "another job" in other.stderr,
          other.stderr)
    p.send_signal(signal.SIGTERM)
    try:
        code = p.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        p.kill()
        code = "timeout"
    equal("SIGTERM ends it, with status 1", code, 1)
    check("SIGTERM leaves whole lines", whole_lines("stopped") is not None, text_of("stopped")[-200:])
    p.stdin.close()
    p.stderr.close()
    src = write("in", lines)
    os.utime(src, (0, 0))  # no modification time, like standard input
    equal("the same output goes on", run(src, path("stopped")).returncode, 0)
    equal("... to the lines of a job that nothing has stopped", sorted(whole_lines("stopped")),
          sorted(run(src, "-").stdout.encode().split(b"\n")[:-1]))


def full_disk():
    """The output may not grow beyond 5,000 bytes: a write of several lines is cut off in the
    middle."""
    src = write("in", [line(f"f{i}", chat(f"Number {i}.")) for i in range(40)])
    p = subprocess.run(command(src, path("full")), capture_output=True, text=True, timeout=PATIENCE,
                       preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000)))
    check("a full disk ends the job and is named", p.returncode == 1 and "full" in p.stderr, p.stderr)
    lines = whole_lines("full")
    check("... with whole lines", lines is not None and len(lines) < 40, text_of("full")[-200:])
    equal("with room it goes on", run(src, path("full")).returncode, 0)
    equal("... to all lines", sorted(whole_lines("full")), sorted(run(src, "-").stdout.encode().split(b"\n")[:-1]))


def killed():
    """Kills come when some more lines have been written, and also before any line, while the model
    loads."""
    rng = random.Random(SEED)
    lines = [line(f"k{i}", chat(f"{'A long story. ' * (i % 7)} Number {i}.", max_tokens=8 + i % 30, temperature=i % 3))
             for i in range(150)]
    lines[20:20] = ["{", line("k3", chat("twice")), line("other", chat("x", model="gpt-9"))]
    src = write("in", lines)
    equal("a job that was not killed", run(src, path("calm"), path("calm errors")).returncode, 1)
    n_killed = torn = 0
    while n_killed < KILLS:
        before = text_of("killed").count(b"\n")
        want = before + rng.choice([0, 1, 2, 4, 8])
        p = subprocess.Popen(command(src, path("killed"), path("killed errors"), "--store", path("store")),
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(lambda: text_of("killed").count(b"\n") >= want or p.poll() is not None)
        p.kill()
        if p.wait() != -signal.SIGKILL:
            break  # the job ended before the kill
        n_killed += 1
        torn += whole_lines("killed") is None
    equal(f"it was killed {KILLS} times", n_killed, KILLS)
    lost = text_of("killed")
    p = run(src, path("killed"), path("killed errors"), "--store", path("store"))
    print(f"# {lost.count(chr(10).encode())} of {len(lines)} lines were there at the last kill; {torn} torn ends")
    check("no line that was there is lost or changed", text_of("killed").startswith(lost[:lost.rfind(b"\n") + 1]))
    for name in ("", " errors"):
        equal(f"the same set of lines{name}, byte for byte", sorted(whole_lines("killed" + name)),
              sorted(whole_lines("calm" + name)))


format_of_lines()
what_fails()
arguments()
shared_beginnings()
interrupted()
full_disk()
killed()
end()
