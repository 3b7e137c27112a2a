"""/v1/files and /v1/batches with the official `openai` client: the life of a batch, access by
owner, refused requests, bounded disk space, and resuming after SIGTERM and kill -9.

It runs in .venv/, which `tools/setup.sh --clients` makes; without it this test is skipped."""
import json
import os
import subprocess

from serve_client import HC, Server, until
from tap import PATIENCE, check, end, equal, in_venv, raises, scratch

openai, = in_venv("openai")

DEMO = "models/demo"
CHAT = "/v1/chat/completions"
tmp = scratch("batches")
ENDED = ("completed", "failed", "cancelled")


def client(server, key="sesame"):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key=key, timeout=PATIENCE, max_retries=0)


def line(custom_id, text, **more):
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": CHAT,
                       "body": {"messages": [{"role": "user", "content": text}], "max_tokens": 8, **more}})


def jsonl(lines):
    return "".join(x + "\n" for x in lines).encode()


def upload(c, data, name="in.jsonl"):
    return c.files.create(file=(name, data), purpose="batch")


def start(c, data, **more):
    return c.batches.create(input_file_id=upload(c, data).id, endpoint=CHAT, completion_window="24h", **more)


def ended(c, batch):
    until(lambda: c.batches.retrieve(batch.id).status in ENDED)
    return c.batches.retrieve(batch.id)


def is_under_way(c, batch, least=1):
    return until(lambda: c.batches.retrieve(batch.id).request_counts.completed >= least)


def lines_of(c, file_id):
    return sorted(c.files.content(file_id).content.split(b"\n")[:-1])


def by_command(name, data, created):
    """Returns the output and errors that `hcache batch` writes for that input, sorted."""
    path = os.path.join(tmp, name)
    with open(path, "wb") as f:
        f.write(data)
    os.utime(path, (created, created))
    subprocess.run([HC, "batch", DEMO, "--in", path, "--out", path + ".out", "--errors", path + ".errors"],
                   stderr=subprocess.DEVNULL, timeout=PATIENCE)
    out = []
    for kind in (".out", ".errors"):
        with open(path + kind, "rb") as f:
            out.append(sorted(f.read().split(b"\n")[:-1]))
    return tuple(out)


SOME = jsonl([line(f"r{i}", f"My dog is called Biscuit {i}.", temperature=i % 2) for i in range(20)] +
             ["{", line("r3", "again"), line("other", "x", model="gpt-9")])
# A batch of this input takes many minutes, so it cannot end before it is cancelled or killed.
LONG = jsonl([line(f"l{i}", f"Story {i}.", max_tokens=500, ignore_eos=True) for i in range(3000)])


def life(server):
    c = client(server)
    f = upload(c, SOME, "röquests.jsonl")
    check("an uploaded file is there", (f.object, f.bytes, f.filename, f.purpose) ==
          ("file", len(SOME), "röquests.jsonl", "batch"), f)
    equal("... and can be read", c.files.content(f.id).content, SOME)
    b = c.batches.create(input_file_id=f.id, endpoint=CHAT, completion_window="24h", metadata={"who": "me"})
    check("a new batch waits or runs", b.status in ("validating", "in_progress") and b.metadata == {"who": "me"}, b)
    b = ended(c, b)
    n = b.request_counts
    equal("it completes", (b.status, n.total, n.completed, n.failed), ("completed", 23, 20, 3))
    check("... with its times", b.created_at <= b.in_progress_at <= b.finalizing_at <= b.completed_at, b)
    equal("its lines are those of `hcache batch`", (lines_of(c, b.output_file_id), lines_of(c, b.error_file_id)),
          by_command("life", SOME, b.created_at))
    out = c.files.retrieve(b.output_file_id)
    equal("its answers are a file", (out.purpose, out.bytes), ("batch_output", len(c.files.content(out.id).content)))
    second = ended(c, start(c, SOME))
    equal("batches are listed, the last first", [x.id for x in c.batches.list()], [second.id, b.id])
    equal("... by pages", [x.id for x in c.batches.list(limit=1)], [second.id, b.id])
    equal("files are listed by purpose", {x.id for x in c.files.list(purpose="batch_output")},
          {b.output_file_id, b.error_file_id, second.output_file_id, second.error_file_id})
    check("a file can be deleted", c.files.delete(f.id).deleted)
    check("... and is gone", raises(openai.NotFoundError, lambda: c.files.retrieve(f.id)) is not None)


def tenants(server):
    """A client with another key neither sees nor changes the batch and its files."""
    c, other = client(server), client(server, "other")
    b = ended(c, start(c, SOME))
    for name, call in (("retrieve", lambda: other.files.retrieve(b.output_file_id)),
                       ("content", lambda: other.files.content(b.output_file_id)),
                       ("delete", lambda: other.files.delete(b.output_file_id)),
                       ("batch", lambda: other.batches.retrieve(b.id)),
                       ("cancel", lambda: other.batches.cancel(b.id)),
                       ("use", lambda: other.batches.create(input_file_id=b.input_file_id, endpoint=CHAT,
                                                            completion_window="24h"))):
        check(f"another key's {name} finds nothing", raises(openai.NotFoundError, call) is not None)
    equal("another key's lists are empty", (list(other.files.list()), list(other.batches.list())), ([], []))
    check("all is there for its own key", len(lines_of(c, b.output_file_id)) == 20)


def refused(server):
    c = client(server)
    f = upload(c, SOME)
    bad = openai.BadRequestError
    for name, call in (
            ("a purpose other than batch", lambda: c.files.create(file=("x", SOME), purpose="vision")),
            ("an empty file", lambda: upload(c, b"")),
            ("a field that is unknown", lambda: c.files.create(file=("x", SOME), purpose="batch",
                                                               extra_body={"colour": "red"})),
            ("an upload that is no form", lambda: c.post("/files", body={"purpose": "batch"}, cast_to=object)),
            ("another endpoint", lambda: c.batches.create(input_file_id=f.id, endpoint="/v1/embeddings",
                                                          completion_window="24h")),
            ("another window", lambda: c.batches.create(input_file_id=f.id, endpoint=CHAT, completion_window="1h")),
            ("metadata that is no object", lambda: c.batches.create(
                input_file_id=f.id, endpoint=CHAT, completion_window="24h", metadata="me"))):
        check(f"{name} is refused", raises(bad, call) is not None)
    check("an unknown input is 404", raises(openai.NotFoundError, lambda: c.batches.create(
        input_file_id="file-0", endpoint=CHAT, completion_window="24h")) is not None)
    b = ended(c, c.batches.create(input_file_id=f.id, endpoint="/v1/completions", completion_window="24h"))
    equal("lines of another endpoint fail", (b.status, b.request_counts.completed, b.output_file_id),
          ("completed", 0, None))


def cancelled(server):
    c = client(server)
    b = start(c, LONG)
    waits = start(c, SOME)
    check("a long batch is under way", is_under_way(c, b))
    check("its input cannot be deleted",
          raises(openai.BadRequestError, lambda: c.files.delete(b.input_file_id)) is not None)
    r = c.chat.completions.create(model="demo", messages=[{"role": "user", "content": "Hello."}], max_tokens=4, seed=1)
    check("a request beside it is answered while it runs", r.usage.completion_tokens > 0 and
          c.batches.retrieve(b.id).status == "in_progress", r)
    equal("a batch that waits is cancelled", c.batches.cancel(waits.id).status, "cancelling")
    check("cancelling says so", c.batches.cancel(b.id).status in ("cancelling", "cancelled"))
    b = ended(c, b)
    out = lines_of(c, b.output_file_id)
    check("a cancelled batch keeps its answers", b.status == "cancelled" and 0 < len(out) < 3000 and
          len(out) == b.request_counts.completed and all(json.loads(x)["error"] is None for x in out), b)
    waits = ended(c, waits)
    equal("... and one that had not begun has none", (waits.status, waits.output_file_id), ("cancelled", None))


def restarted(options):
    """A running batch is stopped once and then killed three times; its output equals that of
    `hcache batch`."""
    data = jsonl([line(f"k{i}", f"Number {i}.", max_tokens=60 + i % 30, ignore_eos=True, temperature=i % 2)
                  for i in range(120)] + ["{"])
    # with a queue of 1 the batch meets a full queue and waits
    options = (*options, "--max-queue", "1")
    server = Server(DEMO, *options)
    b = start(client(server), data)
    for kill in (False, True, True, True):
        c = client(server)
        done = c.batches.retrieve(b.id).request_counts.completed
        check("it goes on", is_under_way(c, b, min(done + 3, 120)))
        if kill:
            server.kill()
        else:
            equal("SIGTERM: the server ends with a batch under way", server.stop(), 0)
        server = Server(DEMO, *options)
    c = client(server)
    b = ended(c, b)
    equal("it completes after SIGTERM and kill -9", (b.status, b.request_counts.total, b.request_counts.failed),
          ("completed", 121, 1))
    equal("its lines are those of a job that nothing has stopped",
          (lines_of(c, b.output_file_id), lines_of(c, b.error_file_id)), by_command("restarted", data, b.created_at))
    server.kill()
    server = Server(DEMO, *options)
    equal("it has ended for good", client(server).batches.retrieve(b.id), b)
    server.kill()


def bounded(options):
    """Files of two keys may take two MiB, one each."""
    server = Server(DEMO, *options, "--files-bytes", "2M")
    c, other = client(server), client(server, "other")
    big = jsonl([line(f"b{i}", "x" * 1000) for i in range(550)])
    f = upload(c, big)
    e = raises(openai.APIStatusError, lambda: upload(c, big))
    check("a file beyond the bound is refused", e is not None and e.status_code == 413 and e.code == "storage_full", e)
    check("another key has its own room", upload(other, big).id)
    answers = [line(f"t{i}", "Hi.", max_tokens=40, ignore_eos=True, logprobs=True, top_logprobs=20) for i in range(60)]
    b = start(c, jsonl(answers))
    until(lambda: c.batches.retrieve(b.id).errors)
    b = c.batches.retrieve(b.id)
    check("a batch whose answers find no room waits", b.status == "in_progress" and
          b.errors.data[0].code == "storage_full" and 0 < b.request_counts.completed < 60, b)
    size = sum(os.path.getsize(os.path.join(tmp, "bounded", x)) for x in os.listdir(os.path.join(tmp, "bounded")))
    check("the folder stays within the bound", size <= 2 << 20, size)
    b2 = ended(other, start(other, jsonl(answers[:1])))
    equal("another key's batch runs meanwhile", (b2.status, b2.request_counts.completed), ("completed", 1))
    c.files.delete(f.id)
    more = until(lambda: c.batches.retrieve(b.id).request_counts.completed > b.request_counts.completed)
    check("deleting makes room, and the batch goes on", more)
    c.batches.cancel(b.id)
    b = ended(c, b)
    check("a cancelled batch keeps its answers", b.status == "cancelled" and lines_of(c, b.output_file_id), b)
    server.kill()
    server = Server(DEMO, *options, "--files-bytes", "8M", "--files-quota", "1M")
    e = raises(openai.APIStatusError, lambda: upload(client(server), big + big))
    check("--files-quota bounds each key's files", e is not None and e.status_code == 413, e)
    server.kill()


def without(options):
    server = Server(DEMO, *options)
    e = raises(openai.BadRequestError, lambda: upload(client(server), SOME))
    check("a server without a folder says so", e is not None and e.code == "no_files", e)
    server.kill()
    folder = os.path.join(tmp, "taken")
    server = Server(DEMO, *options, "--files", folder)
    os.rename(folder, folder + "-away")
    e = raises(openai.InternalServerError, lambda: upload(client(server), SOME))
    check("a fault of the disk names no path", e is not None and e.code == "storage_failed" and tmp not in str(e), e)
    server.kill()


KEYS = ("--api-key", "sesame,other", "--no-any-model")
main = Server(DEMO, *KEYS, "--files", os.path.join(tmp, "files"))
life(main)
tenants(main)
refused(main)
cancelled(main)
equal("the server ends", main.stop(), 0)
restarted((*KEYS, "--files", os.path.join(tmp, "again")))
bounded((*KEYS, "--files", os.path.join(tmp, "bounded")))
without(KEYS)
end()
