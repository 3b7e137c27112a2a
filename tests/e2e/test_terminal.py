"""`hcache run -p` and `-i`: the chat template, and a conversation on a terminal that is a pseudo terminal here."""
import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(__file__))
from plain_model import write_plain_model  # noqa: E402
from tap import PATIENCE, check, end, equal  # noqa: E402

HC = os.path.abspath(os.path.join(os.environ["HCACHE_BUILD"], "hcache"))
MODEL = "models/demo"
tmp = tempfile.mkdtemp(prefix="hcache-terminal.")


def run(model, *options, text=None):
    return subprocess.run([HC, "run", model, *options], input=text, capture_output=True, text=True, timeout=PATIENCE)


def run_json(*options):
    return json.loads(run(MODEL, *options, "--json").stdout)


class Terminal:
    """hcache run -i on a terminal of its own."""

    def __init__(self, *options):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "vt100"
            os.execv(HC, [HC, "run", MODEL, "-i", *options])
        self.shown, self.mark = "", 0

    def read(self):
        if select.select([self.fd], [], [], 0.05)[0]:
            try:
                self.shown += os.read(self.fd, 65536).decode(errors="replace").replace("\r", "")
            except OSError:  # its end
                pass

    def until(self, pattern):
        """Whether it is shown behind what was waited for before; what stands before it is in .said."""
        stop = time.time() + PATIENCE
        while time.time() < stop:
            m = re.search(pattern, self.shown[self.mark:])
            if m:
                self.said = self.shown[self.mark:self.mark + m.start()]
                self.mark += m.end()
                return True
            self.read()
        return False

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
    p = run(MODEL, "-i", text="My dog is called Biscuit.\n/new\nWhat is my dog called?\n")
    check("/new forgets", p.returncode == 0 and "Biscuit" not in p.stdout.split("\n")[1], p)
    two = run(MODEL, "-i", text="My dog is called Biscuit\\\nand I live in Lisbon.\nWhere do I live?\n")
    quoted = run(MODEL, "-i", text='"""\nMy dog is called Biscuit\nand I live in Lisbon.\n"""\nWhere do I live?\n')
    check("a message of several lines, both ways", two.returncode == 0 and two.stdout.count("\n") == 2 and
          two.stdout == quoted.stdout, (two, quoted))
    p = run(MODEL, "-i", "--max-context", "64", text="Hello.\n" + "one two three four " * 20 + "\nHello again.\n")
    check("what fails ends the chat of a pipe", p.returncode == 1 and "is full" in p.stderr, p)


def test_terminal():
    t = Terminal()
    check("there is a prompt", t.until("> "), t.shown)
    check("an answer", t.ask("My dog is called Biscuit.", r"dog is called Biscuit\.\n") and t.until("> "), t.shown)
    t.type("What is my cat called?")
    t.type("\x1b[D" * len("cat called?") + "\x04" * 3 + "dog\n")  # to the left, three times delete, dog
    check("a line is edited", t.until(r"Your dog is called Biscuit\.\n") and t.until("> "), t.shown)
    t.type("\x1b[A\n")  # upwards: the line before
    check("and recalled", t.until(r"Your dog is called Biscuit\.\n") and t.until("> "), t.shown)
    t.type("nonsense\x03")
    check("Ctrl-C drops a line", t.until("> ") and t.ask("/branch 9", "there are only 3 answers") and t.until("> "), t.shown)
    check("an unknown command is said", t.ask("/nonsense", "there is no command /nonsense") and t.until("> "), t.shown)
    check("/help", t.ask("/help", "/retry") and t.until("> "), t.shown)
    check("/new begins another one", t.ask("/new second", "'second' begins") and t.until("> "), t.shown)
    check("/list shows both", t.ask("/list", r"0 turns +second\n") and t.until(r"3 turns") and t.until("> "), t.shown)
    t.type("/exit\n")
    equal("/exit: status 0", t.end(), 0)
    t = Terminal()
    t.until("> ")
    t.type("\x04")
    equal("Ctrl-D on an empty line: status 0", t.end(), 0)


def test_stop():
    store = os.path.join(tmp, "store")
    t = Terminal("--conversation", "mole", "--store", store, "--ignore-eos")
    t.until("> ")
    for _ in range(20):  # an answer may have come to its end while nobody ran this test
        t.type("Tell me a story about a mole.\n")
        t.until("Once upon a time")
        t.type("\x03")
        t.until(r"\[stopped; the answer so far is kept|\[the answer ended|is full")
        if "stopped" in t.shown[t.mark - 60:t.mark + 10]:
            break
        t.until("> ")
        t.ask("/new mole", "begins")
        t.until("> ")
    check("Ctrl-C stops the answer, not the program", "[stopped" in t.shown and t.until("> "), t.shown)
    t.type("/exit\n")
    equal("status 0", t.end(), 0)
    t = Terminal("--conversation", "mole", "--store", store, "-n", "20")
    check("the answer so far is kept", t.until("goes on after 1 turn") and t.until("Once upon a time") and t.until("> "), t.shown)
    check("it goes on", t.ask("Thank you.", r"\n.*\n") and t.until("> "), t.shown)
    check("/retry asks again, on a branch", t.ask("/retry", r"\n.*\n") and t.until("> "), t.shown)
    check("both branches are listed", t.ask("/list", r"2 turns +mole\n") and t.until(r"2 turns +mole\n") and t.until("> "), t.shown)
    t.type("/exit\n")
    equal("status 0 again", t.end(), 0)


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
    check("and is no dead end: /branch goes on", t.ask("/branch 2", "goes on after") and t.until("> ") and
          t.ask("Hello.", r"\n.*\n") and t.until("> "), t.shown)
    t.type("/exit\n")
    equal("status 0 at the end", t.end(), 0)


try:
    test_template()
    test_lines()
    test_terminal()
    test_stop()
    test_full()
finally:
    shutil.rmtree(tmp, ignore_errors=True)
end()
