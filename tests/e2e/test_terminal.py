"""`hcache run -p` and `-i`: the chat template, and conversations on a pseudo terminal, with the
model in this process or on a running server (--url)."""
import json
import os
import pty
import re
import select
import signal
import subprocess
import termios
import time

from plain_model import write_plain_model
from serve_client import HC, Server
from tap import PATIENCE, check, end, equal, scratch

MODEL = "models/demo"
tmp = scratch("terminal")
os.environ["XDG_STATE_HOME"] = os.path.join(tmp, "state")  # not the user's own history
HISTORY = os.path.join(tmp, "state", "hcache", "history")


def run(model, *options, text=None):
    return subprocess.run([HC, "run", model, *options], input=text, capture_output=True, text=True, timeout=PATIENCE)


def run_json(*options):
    return json.loads(run(MODEL, *options, "--json").stdout)


class Terminal:
    """`hcache run -i` on a terminal of its own, with models/demo in its process or over a server."""

    def __init__(self, *options, **environment):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update({"TERM": "vt100", **environment})
            os.execv(HC, [HC, "run", *([] if "--url" in options else [MODEL]), "-i", *options])
        self.shown, self.mark = "", 0

    def read(self):
        if select.select([self.fd], [], [], 0.05)[0]:
            try:
                self.shown += os.read(self.fd, 65536).decode(errors="replace").replace("\r", "")
            except OSError:  # the program has ended
                pass

    def until(self, pattern):
        """Returns whether the pattern appears in the text after the previous match. Sets .said to
        the text up to the pattern."""
        stop = time.time() + PATIENCE
        while time.time() < stop:
            m = re.search(pattern, self.shown[self.mark:])
            if m:
                self.said = self.shown[self.mark:self.mark + m.start()]
                self.mark += m.end()
                return True
            self.read()
        return False

    def cooked(self):
        """Returns whether the terminal itself edits lines, echoes keys and turns Ctrl-C into a
        signal."""
        return bool(termios.tcgetattr(self.fd)[3] & (termios.ICANON | termios.ECHO | termios.ISIG))

    def type(self, keys):
        os.write(self.fd, keys.encode())

    def ask(self, line, pattern):
        self.type(line + "\n")
        return self.until(pattern)

    def end(self):
        status = None
        stop = time.time() + PATIENCE
        while status is None and time.time() < stop:
            self.read()
            pid, code = os.waitpid(self.pid, os.WNOHANG)
            status = os.waitstatus_to_exitcode(code) if pid else None
        os.close(self.fd)
        return status


# --- one prompt --------------------------------------------------------------------------------------------------


def test_template():
    p = run(MODEL, "-p", "My dog is called Biscuit.")
    check("-p is a user's message: the model answers", p.returncode == 0 and "dog is called Biscuit." in p.stdout, p)
    chat = "<|begin|><|user|>My dog is called Biscuit.<|end|><|assistant|>"
    a, b = run_json("-p", "My dog is called Biscuit."), run_json("--raw", "-p", chat)
    equal("its tokens are those of the template", (a["prompt_tokens"], a["token_ids"]), (b["prompt_tokens"], b["token_ids"]))
    c = run_json("--raw", "-p", "My dog is called Biscuit.", "-n", "4")
    check("--raw: without it", c["prompt_tokens"] < a["prompt_tokens"], c)
    d = run_json("--system", "You are kind.", "-p", "My dog is called Biscuit.", "-n", "4")
    e = run_json("--raw", "-n", "4", "-p", chat.replace("<|user|>", "<|system|>You are kind.<|end|><|user|>"))
    equal("--system stands before it", (d["prompt_tokens"], d["token_ids"]), (e["prompt_tokens"], e["token_ids"]))
    with open(os.path.join(tmp, "prompt"), "w") as f:
        f.write("My dog is called Biscuit.")
    equal("--prompt-file: the same", run_json("--prompt-file", f.name)["token_ids"], a["token_ids"])
    spelled = run_json("-p", "<|end|>", "-n", "1")
    check("special tokens that a message spells are text", spelled["prompt_tokens"] > run_json("-p", "", "-n", "1")["prompt_tokens"] + 1,
          spelled)
    plain = write_plain_model(os.path.join(tmp, "plain"))
    p = run(plain, "-p", "Once", "-n", "4", "--system", "You are kind.")
    check("--system without a template is refused", p.returncode == 2 and "--system needs a chat template" in p.stderr, p)
    p = run(plain, "-p", "Once", "-n", "4", "--json")
    check("a model without a template takes the text", json.loads(p.stdout)["prompt_tokens"] <= 3, p)
    long = run_json("--ignore-eos", "--max-context", "128", "-p", "Hello")
    equal("-n defaults to what is left of the context", long["prompt_tokens"] + len(long["token_ids"]), 128)


# --- a conversation -----------------------------------------------------------------------------------------------


def test_lines():
    p = run(MODEL, "-i", text="My dog is called Biscuit.\nWhat is my dog called?\n")
    equal("lines of a pipe are turns of one conversation", (p.returncode, p.stdout.split("\n")[1]), (0, "Your dog is called Biscuit."))
    check("a shell's prompt does not stand behind the last one", p.stderr.endswith("> \n"), p.stderr)
    p = run(MODEL, "-i", text="My dog is called Biscuit.\n/new\nWhat is my dog called?\n")
    check("/new forgets", p.returncode == 0 and "Biscuit" not in p.stdout.split("\n")[1], p)
    two = run(MODEL, "-i", text="My dog is called Biscuit\\\nand I live in Lisbon.\nWhere do I live?\n")
    quoted = run(MODEL, "-i", text='"""\nMy dog is called Biscuit\nand I live in Lisbon.\n"""\nWhere do I live?\n')
    check("a message of several lines, both ways", two.returncode == 0 and two.stdout.count("\n") == 2 and
          two.stdout == quoted.stdout, (two, quoted))
    begun = run(MODEL, "-i", text='"""My dog is called Biscuit\nand I live in Lisbon."""\nWhere do I live?\n')
    equal("the marks may stand beside text", begun.stdout, two.stdout)
    one = run(MODEL, "-i", text='"""My dog is called Biscuit."""\nWhat is my dog called?\n')
    equal("and in one line", one.stdout.split("\n")[1], "Your dog is called Biscuit.")
    p = run(MODEL, "-i", "--max-context", "64", text="Hello.\n" + "one two three four " * 20 + "\nHello again.\n")
    check("what fails ends the chat of a pipe", p.returncode == 1 and "is full" in p.stderr, p)


def test_terminal():
    t = Terminal()
    check("there is a prompt", t.until("> "), t.shown)
    check("an answer", t.ask("My dog is called Biscuit.", r"dog is called Biscuit\.\n") and t.until("> "), t.shown)
    t.type("What is my cat called?")
    # moves to the left, deletes three letters, and types "dog"
    t.type("\x1b[D" * len("cat called?") + "\x04" * 3 + "dog\n")
    check("a line is edited", t.until(r"Your dog is called Biscuit\.\n") and t.until("> "), t.shown)
    t.type("\x1b[A\n")  # the up key brings back the previous line
    check("and recalled", t.until(r"Your dog is called Biscuit\.\n") and t.until("> "), t.shown)
    check("the program has taken over the terminal when it shows its prompt", not t.cooked(), t.shown)
    t.type("nonsense\x03")
    check("Ctrl-C drops a line", t.until("> ") and t.ask("/branch 9", "there are only 3 answers") and t.until("> "), t.shown)
    check("an unknown command is said", t.ask("/nonsense", "unknown command /nonsense") and t.until("> "), t.shown)
    check("/help", t.ask("/help", "/retry") and t.until("> "), t.shown)
    check("/new begins another one", t.ask("/new second", "'second' begins") and t.until("> "), t.shown)
    check("/list shows both", t.ask("/list", r"0 turns +second\n") and t.until(r"3 turns") and t.until("> "), t.shown)
    t.type("/exit\n")
    equal("/exit: status 0", t.end(), 0)
    t = Terminal()
    t.until("> ")
    t.type("\x04")
    check("Ctrl-D ends the line of the prompt", t.until("\n"), t.shown)
    equal("Ctrl-D on an empty line: status 0", t.end(), 0)


def test_kept():
    """With a store, a conversation without a name is kept, too. With a prompt's file, the file's
    text is the conversation's first message."""
    store = os.path.join(tmp, "unnamed")
    t = Terminal("--store", store)
    t.until("> ")
    check("an answer", t.ask("My dog is called Biscuit.", r"dog is called Biscuit\.\n") and t.until("> "), t.shown)
    t.type("/exit\n")
    check("a kept conversation says how to go on", t.until(r"continue it with --conversation 'My dog is called Biscuit\.'"), t.shown)
    equal("status 0", t.end(), 0)
    p = run(MODEL, "-i", "--store", store, "--conversation", "My dog is called Biscuit.", text="What is my dog called?\n")
    check("and it goes on", "continues after 1 turn" in p.stderr and p.stdout == "Your dog is called Biscuit.\n", p)
    with open(os.path.join(tmp, "first"), "w") as f:
        f.write("My dog is called Biscuit.")
    p = run(MODEL, "-i", "--prompt-file", f.name, text="What is my dog called?\n")
    equal("--prompt-file is the first message", p.stdout.split("\n")[1], "Your dog is called Biscuit.")
    t = Terminal()
    t.until("> ")
    t.type("/exit\n")
    equal("without a store", t.end(), 0)
    check("nothing is kept, nor said to be", "kept" not in t.shown, t.shown)


def test_retry():
    """/retry gives another answer, unless the temperature is 0. It works over a server, too."""
    question = "q"  # a question for which no answer is much more probable than others
    server = Server(MODEL)
    for name, ask in (("here", lambda *o, lines: run(MODEL, "-i", *o, text="".join(line + "\n" for line in lines)).stdout),
                      ("over a server", lambda *o, lines: remote(server, *o, lines=lines)[1])):
        answers = ask("-n", "40", "--ignore-eos", lines=[question, "/retry", "/retry"]).rstrip("\n").split("\n")
        check(f"{name}: each /retry has another answer", len(answers) == 3 and len(set(answers)) == 3, answers)
        answers = ask("-n", "40", "--ignore-eos", "--temperature", "0", lines=[question, "/retry"]).rstrip("\n").split("\n")
        check(f"{name}: but where temperature 0 is given", len(answers) == 2 and len(set(answers)) == 1, answers)
    server.stop()


def messages_of(store, name):
    """Returns the user's messages of a conversation, as the server shows them."""
    server = Server(MODEL, "--store", store)
    id = [v["id"] for v in server.request("GET", "/v1/conversations")[2]["data"] if v["title"] == name][0]
    items = server.request("GET", f"/v1/conversations/{id}/items?order=asc")[2]["data"]
    server.stop()
    return [i["content"][0]["text"] for i in items if i["role"] == "user"]


def test_paste():
    """Several pasted lines make one message, which Enter sends. Letters beyond ASCII can be typed
    and edited, even if the terminal's locale has none."""
    store = os.path.join(tmp, "pasted")
    for name, locale in (("posix", "C"), ("utf-8", "C.UTF-8")):
        t = Terminal("-n", "4", "--store", store, "--conversation", name, LC_ALL=locale)
        t.until("> ")
        check(f"{locale}: the terminal is asked to mark what is pasted", "\x1b[?2004h" in t.shown, t.shown)
        t.type("Grüße an Жанна\x7fы!\n")
        check(f"{locale}: letters beyond ASCII are shown", t.until("Grüße an Жан") and t.until(r"\n.*\n") and t.until("> "), t.shown)
        t.type("Read: \x1b[200~def f():\r\treturn 'é'\r/exit\r\r\"\"\"\\\rlast\x1b[201~ line")
        check(f"{locale}: nothing is sent before Enter", t.until(r"\. last line") and "return 'é'" in t.said, t.shown)
        t.type("\n")
        check(f"{locale}: then there is an answer", t.until(r"\n.*\n") and t.until("> "), t.shown)
        t.type("\x1b[200~one line\x1b[201~, edited\n")
        check(f"{locale}: a pasted line can be edited", t.until("one line, edited") and t.until(r"\n.*\n") and t.until("> "), t.shown)
        t.type("\x1b[200~ends\rwith a line's end\r\x1b[201~")
        t.until(r"with a line's end\n")
        t.type("\n")
        check(f"{locale}: and is sent by Enter alone", t.until(r"\n.*\n") and t.until("> "), t.shown)
        t.type("\x1b[200~dropped\rmore\x03")
        check(f"{locale}: Ctrl-C drops what is pasted", t.until("> "), t.shown)
        t.type("/exit\n")
        equal(f"{locale}: status 0", t.end(), 0)
        equal(f"{locale}: the messages are what was typed and pasted", messages_of(store, name),
              ["Grüße an Жанны!", "Read: def f():\n\treturn 'é'\n/exit\n\n\"\"\"\\\nlast line",
               "one line, edited", "ends\nwith a line's end"])


def stop_a_story(t, number=""):
    """Stops an answer by Ctrl-C. `number` makes the names of conversations that begin anew."""
    for i in range(20):  # the answer may have ended while the machine paused this test
        t.type("Tell me a story about a mole.\n")
        t.until("Once upon a time")
        t.type("\x03")
        t.until(r"\[stopped; the answer so far is kept|\[the answer ended|is full")
        if "stopped" in t.shown[t.mark - 60:t.mark + 10]:
            break
        t.until("> ")
        t.ask("/new mole" + number.format(i), "begins")
        t.until("> ")


def test_stop():
    store = os.path.join(tmp, "store")
    t = Terminal("--conversation", "mole", "--store", store, "--ignore-eos")
    t.until("> ")
    stop_a_story(t)
    check("Ctrl-C stops the answer, not the program", "[stopped" in t.shown and t.until("> "), t.shown)
    t.type("/exit\n")
    equal("status 0", t.end(), 0)
    t = Terminal("--conversation", "mole", "--store", store, "-n", "20")
    check("the answer so far is kept", t.until("continues after 1 turn") and t.until("Once upon a time") and t.until("> "), t.shown)
    check("it goes on", t.ask("Thank you.", r"\n.*\n") and t.until("> "), t.shown)
    check("/retry asks again, on a branch", t.ask("/retry", r"\n.*\n") and t.until("> "), t.shown)
    check("both branches are listed", t.ask("/list", r"2 turns +mole\n") and t.until(r"2 turns +mole\n") and t.until("> "), t.shown)
    t.type("/exit\n")
    equal("status 0 again", t.end(), 0)


def test_stop_while_reading():
    """Ctrl-C before the first token keeps the question, and the program continues. The prompt's
    state comes from a store that takes minutes to read."""
    options = ["--conversation", "long", "--store", os.path.join(tmp, "reading"), "--plan", "kv", "--history=false"]
    run(MODEL, "-i", *options, "-n", "4", text="one two three four " * 160 + "\n")
    t = Terminal(*options, "--throttle", "64K")
    t.until("> ")
    t.type("Go on.\n")
    check("a prompt that takes long shows how far it is", t.until("reading the prompt"), t.shown)
    t.type("\x03")
    check("Ctrl-C stops the request before its answer", t.until(r"\[stopped") and
          re.fullmatch(r"(\^C|, tokens +0|\x1b\[K|reading the prompt|\n)*", t.said), t.said)
    check("and not the program", t.until("> ") and t.ask("/list", r"2 turns +long"), t.shown[-500:])
    os.kill(t.pid, signal.SIGKILL)  # an orderly end would wait for the slow store
    t.end()


def test_history():
    if os.path.exists(HISTORY):
        os.remove(HISTORY)
    t = Terminal("-n", "4")
    t.until("> ")
    t.ask("a line to be kept", r"\n.*\n")
    t.until("> ")
    os.kill(t.pid, signal.SIGKILL)  # shows that each message is kept at once
    t.end()
    equal("the history is readable by its owner alone", os.stat(HISTORY).st_mode & 0o7777, 0o600)
    equal("and so is its folder", os.stat(os.path.dirname(HISTORY)).st_mode & 0o7777, 0o700)
    t = Terminal("-n", "4")
    t.until("> ")
    t.type("\x1b[A")
    check("a line is recalled in the next run", t.until("a line to be kept"), t.shown)
    t.type("\x03")
    t.until("> ")
    t.type("/exit\n")
    t.end()
    before = open(HISTORY, "rb").read()
    t = Terminal("-n", "4", "--history=false")
    t.until("> ")
    t.type("\x1b[Anot to be kept\n")
    t.until("> ")
    t.type("/exit\n")
    t.end()
    check("--history=false: neither read nor written", "a line to be kept" not in t.shown and open(HISTORY, "rb").read() == before, t.shown)
    target = os.path.join(tmp, "target")
    open(target, "w").close()
    os.remove(HISTORY)
    os.symlink(target, HISTORY)
    t = Terminal("-n", "4")
    check("a link in its place is refused, and the chat goes on", t.until("cannot be read") and t.until("> ") and
          t.ask("Hello.", r"\n.*\n"), t.shown)
    os.kill(t.pid, signal.SIGKILL)
    t.end()
    equal("and not written through", open(target).read(), "")
    os.remove(HISTORY)


def remote(server, *options, lines=(), key=None):
    """Sends the lines over a pipe.  Returns (status, stdout, stderr)."""
    p = subprocess.run([HC, "run", "-i", "--url", f"http://127.0.0.1:{server.port}/", *options], capture_output=True, text=True,
                       input="".join(line + "\n" for line in lines), timeout=PATIENCE,
                       env={**os.environ, **({"HCACHE_API_KEY": key} if key else {})})
    return p.returncode, p.stdout, p.stderr


def turns(server, key=None):
    headers = {"Authorization": "Bearer " + key} if key else {}
    return [(v["title"], v["turns"]) for v in server.request("GET", "/v1/conversations", headers=headers)[2]["data"]]


def test_remote():
    server = Server(MODEL, "--store", os.path.join(tmp, "remote"))
    here = run(MODEL, "-i", text="My dog is called Biscuit.\nWhat is my dog called?\n")
    status, out, err = remote(server, "--conversation", "dogs", lines=["My dog is called Biscuit.", "What is my dog called?"])
    equal("over a server the answers are those of this process", (status, out), (0, here.stdout))
    equal("the server has the conversation", turns(server), [("dogs", 2)])
    status, out, err = remote(server, "--conversation", "dogs", lines=["What is my dog called?"])
    check("the next run goes on with it", "continues after 2 turns" in err and "Your dog is called Biscuit." in out, (out, err))
    status, out, err = remote(server, "--conversation", "dogs", "--temperature", "0", lines=["/retry", "/list"])
    check("/retry asks again, on a branch", status == 0 and "Your dog is called Biscuit." in out and
          sorted(turns(server)) == [("dogs", 3), ("dogs", 3)], (out, err, turns(server)))
    status, out, err = remote(server, "--conversation", "dogs", lines=["/branch 2", "And my cat?", "/branch 9"])
    check("/branch goes back", "continues after 1 turn." in err and "there are only 2 answers" in err and
          sorted(n for _, n in turns(server)) == [2, 3, 3], (err, turns(server)))
    status, out, err = remote(server, lines=["/list", "/new cats", "My cat is Tom.", "/open dogs", "/exit"])
    check("/list, /new and /open", out.count("dogs") == 3 and "'cats' begins" in err and "'dogs' continues after" in err and
          ("cats", 1) in turns(server), (out, err))
    n = len(turns(server))
    remote(server, lines=["/new", "/new empty"])
    equal("a conversation in which nothing was said is not kept", len(turns(server)), n)
    status, out, err = remote(server, "--system", "You are kind.", "--conversation", "kind", lines=["Hello."])
    id = server.request("GET", "/v1/conversations")[2]["data"][0]["id"]
    items = server.request("GET", f"/v1/conversations/{id}/items?order=asc")[2]["data"]
    equal("--system is the first message", [(i["role"], i["content"][0]["text"]) for i in items[:2]],
          [("system", "You are kind."), ("user", "Hello.")])
    t = Terminal("--url", f"http://127.0.0.1:{server.port}", "--conversation", "mole", "--ignore-eos")
    t.until("> ")
    stop_a_story(t, " {}")
    check("Ctrl-C stops the server's answer, not the program", "[stopped" in t.shown and t.until("> "), t.shown[-500:])
    id = server.request("GET", "/v1/conversations")[2]["data"][0]["id"]
    items = server.request("GET", f"/v1/conversations/{id}/items?order=asc")[2]["data"]
    equal("the server keeps it as far as it came", [i["status"] for i in items], ["completed", "incomplete"])
    t.type("/exit\n")
    equal("/exit", t.end(), 0)
    server.stop()
    status, out, err = remote(server, lines=["Hello."])
    check("no server there: a message that names the address", status == 1 and f"127.0.0.1:{server.port}" in err, err)


def test_remote_bounds():
    server = Server(MODEL, "--max-context", "192", "--api-key", "sesame")
    status, out, err = remote(server, lines=["Hello."])
    check("a server's key is asked for", status == 1 and "API key" in err, err)
    status, out, err = remote(server, "-n", "40", "--ignore-eos", lines=["Tell me a story about an owl."] * 12, key="sesame")
    check("from 80 % on there is a warning; a full conversation says what to do", status == 1 and "of 192 tokens of the context are used" in err
          and "this conversation is full. /new" in err, err)
    status, out, err = remote(server, "-n", "8", lines=["one two three four " * 60], key="sesame")
    check("a refused first message leaves no conversation", status == 1 and "is full" in err and len(turns(server, "sesame")) == 1,
          (err, turns(server, "sesame")))
    server.stop()
    for options in (["--url", "http://x"], ["-i", "--url", "http://x", "--store", "y"], ["-i", "--url", "http://x", "--json"], ["-i"]):
        p = subprocess.run([HC, "run", *options], capture_output=True, text=True, input="")
        check(f"refused: run {' '.join(options)}", p.returncode == 2, p)


def test_full():
    t = Terminal("--max-context", "192", "-n", "40", "--ignore-eos")
    t.until("> ")
    seen = []
    for _ in range(12):
        t.type("Tell me a story about an owl.\n")
        t.until("> ")
        seen.append(t.said)
        if "is full" in t.said:
            break
    warned = [bool(re.search(r"\[\d+ of 192 tokens of the context are used \((8|9)\d %|\[\d+ of 192 .*100 %", s)) for s in seen]
    check("from 80 % on there is a warning, and not before", not warned[0] and any(warned), seen)
    check("a full conversation says what to do", "is full" in seen[-1] and "branch from an earlier answer" in seen[-1], seen)
    check("and is no dead end: /branch goes on", t.ask("/branch 2", "continues after") and t.until("> ") and
          t.ask("Hello.", r"\n.*\n") and t.until("> "), t.shown)
    t.type("/exit\n")
    equal("status 0 at the end", t.end(), 0)


test_template()
test_lines()
test_terminal()
test_kept()
test_paste()
test_stop()
test_stop_while_reading()
test_full()
test_history()
test_remote()
test_remote_bounds()
test_retry()
end()
