"""The page in a real browser: branches side by side, search, files, thoughts, the requests of other
programs, and an answer that a killed server cuts off.

Without a browser this test is skipped (browser.py)."""
import http.client
import http.server
import json
import os
import shutil
import signal
import sys
import threading

from browser import (DESKTOP, PHONE, Keys, all_of, browser, complaints, element, is_idle, press, press_first, say,
                     shot, texts, until)
import scripted_model
from serve_client import Server
from tap import check, end, equal, scratch, skip

tmp = scratch("more")


class Between:
    """Passes requests on to the server. If it is armed, it kills the server with SIGKILL after the first
    words of the next answer, and the browser's connection ends there."""

    def __init__(self, server):
        self.server, self.is_armed = server, False
        outer = self

        class Pass(http.server.BaseHTTPRequestHandler):
            def go(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                try:
                    c = http.client.HTTPConnection("127.0.0.1", outer.server.port, timeout=60)
                    c.request(self.command, self.path, body, {k: v for k, v in self.headers.items() if k != "Connection"})
                    r = c.getresponse()
                    self.send_response(r.status)
                    for k, v in r.getheaders():
                        if k.lower() not in ("transfer-encoding", "connection", "content-length"):
                            self.send_header(k, v)
                    self.send_header("Connection", "close")
                    self.end_headers()
                    for line in r:
                        ends = outer.is_armed and self.path == "/v1/responses" and b"output_text.delta" in line and line.startswith(b"data")
                        if ends:  # first, or the answer may end before the kill, and the server keep it
                            outer.server.p.send_signal(signal.SIGKILL)
                        self.wfile.write(line + b"\n" * ends)
                        self.wfile.flush()
                        if ends:
                            outer.is_armed = False
                            outer.server.p.wait()
                            return
                except OSError:
                    self.close_connection = True

            do_GET = do_POST = do_DELETE = go

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pass)
        self.port = self.http.server_address[1]
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def stop(self):
        self.http.shutdown()
        self.http.server_close()


def opened(b, url):
    b.get(url)
    until(lambda: texts(b, "#model")[0], "the model's name")


def current(b):
    return b.execute_script("return location.hash.slice(1)")


def new(b):
    element(b, "new").send_keys(Keys.ENTER)
    until(lambda: current(b) == "" and all_of(b, "#talk .welcome"), "a new conversation")


def test_branches(b, server):
    say(b, "What is the first thing?")
    say(b, "And the second thing?")
    first = current(b)
    equal("a turn without others beside it has no arrows", texts(b, ".beside"), [])
    press(b, "Try again", "#talk .assistant")
    until(lambda: current(b) not in ("", first) and len(all_of(b, "#talk .assistant > .foot")) == 2, "the second try")
    second = current(b)
    press(b, "Edit", "#talk .user")
    all_of(b, "#talk textarea.edit")[0].send_keys(" In prose.")
    press(b, "Send on a branch", "#talk .user")
    until(lambda: current(b) not in ("", first, second) and len(all_of(b, "#talk .assistant > .foot")) == 2, "the edited question")
    titles = {c["id"]: c["title"] for c in server.request("GET", "/v1/conversations")[2]["data"]}
    equal("a branch has a title of its own, from its first own question",
          [titles[first], titles[second], titles[current(b)]],
          ["What is the first thing?", "And the second thing?", "And the second thing? In prose."])
    third = current(b)
    b.refresh()
    until(lambda: texts(b, ".beside span") == ["3 of 3"], "the arrows")
    shot(b, "branches")
    press(b, "‹", ".beside")
    until(lambda: current(b) == second and texts(b, ".beside span") == ["2 of 3"], "the branch before it")
    press(b, "‹", ".beside")
    until(lambda: current(b) == first and texts(b, ".beside span") == ["1 of 3"], "the first one")
    equal("there is none before the first", [x.is_enabled() for x in all_of(b, ".beside button")], [False, True])
    press(b, "Branch", "#talk .assistant", 0)
    until(lambda: current(b) not in (first, second, third) and len(all_of(b, "#talk .assistant")) == 1, "a branch by hand")
    equal("until it has a question a branch is called after its origin", texts(b, "#title"), ["Branch of What is the first thing?"])
    say(b, "Something else entirely?")
    until(lambda: texts(b, "#title") == ["Something else entirely?"], "the title")


def test_search(b):
    n = len(all_of(b, "#list li"))
    element(b, "query").send_keys("IN PROSE")
    until(lambda: len(all_of(b, "#list li")) == 1, "what the search finds")
    check("a search finds the words of a message, whatever their case", "In prose" in texts(b, "#list .open")[0], texts(b, "#list"))
    element(b, "query").send_keys(" nowhere")
    until(lambda: texts(b, "#found") == ["Nothing found."], "that nothing is found")
    element(b, "query").clear()
    element(b, "query").send_keys("x" + Keys.BACKSPACE)
    until(lambda: len(all_of(b, "#list li")) == n, "the whole list")


def test_files(b, server):
    new(b)
    path = os.path.join(tmp, "list \"of\" birds.txt")
    with open(path, "w", encoding="utf-8") as f:
        f.write("wren\nrobin\nblåmes\n")
    element(b, "attach-file").send_keys(path)
    until(lambda: len(all_of(b, "#files li")) == 1, "the attached file")
    say(b, "Which birds are these?")
    equal("an attached file is a part of the message, before its words",
          [c["text"] for c in server.request("GET", f"/v1/conversations/{current(b)}/items?order=asc")[2]["data"][0]["content"]],
          ["File \"list _of_ birds.txt\":\nwren\nrobin\nblåmes\n", "Which birds are these?"])
    equal("the next message does not take it along", texts(b, "#files li"), [])
    b.refresh()
    until(lambda: len(all_of(b, "#talk .assistant > .foot")) == 1, "the conversation")
    equal("the message shows the file folded", [texts(b, "#talk .user .said"), texts(b, "#talk .user .file summary")],
          [["Which birds are these?"], ["list _of_ birds.txt"]])
    binary = os.path.join(tmp, "picture.png")
    with open(binary, "wb") as f:
        f.write(b"\x89PNG\0\xff")
    element(b, "attach-file").send_keys(binary)
    until(lambda: "picture.png is not a text" in texts(b, "#notice")[0], "that a picture is no text")
    equal("and it is not attached", texts(b, "#files li"), [])


# Stands in for pdftotext, and does what a hostile PDF could have it do.
FAKE = f'''#!{sys.executable}
import fcntl, os, resource, socket, sys, time
head = os.pread(0, 16, 0)
def tries(f):
    try:
        return str(f())
    except (OSError, MemoryError) as e:
        return type(e).__name__
if head == b"%FAKE escape":
    parent, own = os.getppid(), "{tmp}/bin/pdftotext"
    refused = (socket.socket, lambda: os.open("{tmp}/x", os.O_CREAT), lambda: os.open(own, os.O_RDWR), lambda: os.truncate(own, 0),
               lambda: os.unlink(own), lambda: os.rename(own, own + "2"), lambda: os.chmod(own, 0), lambda: os.mkdir("{tmp}/y"),
               lambda: os.kill(parent, 0), lambda: os.pidfd_open(parent), lambda: os.setpriority(os.PRIO_PROCESS, parent, 1),
               lambda: fcntl.fcntl(0, 8, parent), lambda: resource.prlimit(parent, resource.RLIMIT_NOFILE), os.fork)
    print([i for i, f in enumerate(refused) if tries(f) != "PermissionError"], tries(lambda: bytearray(2 << 30)),
          sorted(os.listdir("/proc/self/fd")), sorted(os.environ))
elif head == b"%FAKE long":
    print("word " * (1 << 20))
elif head == b"%FAKE sleep":
    time.sleep(60)
else:
    os.execv({shutil.which("pdftotext")!r}, sys.argv)
'''


def pdf_of(text):
    stream = b"BT /F1 12 Tf 72 720 Td (%s) Tj ET" % text
    objects = [b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
               b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>",
               b"<</Length %d>>stream\n%s\nendstream" % (len(stream), stream), b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"]
    return b"%PDF-1.4\n" + b"".join(b"%d 0 obj%s endobj\n" % (i, o) for i, o in enumerate(objects, 1)) + b"trailer<</Root 1 0 R>>"


def read_pdf(server, body):
    status, _, r = server.request("POST", "/pdf-text", body, {"Content-Type": "application/pdf"})
    return status, r.get("text") or r["error"]["message"]


def test_pdf(b, server, slow):
    if shutil.which("pdftotext") is None:
        return skip("PDFs", "pdftotext is not installed (poppler-utils)")
    equal("the text of a PDF", read_pdf(server, pdf_of(b"Two wrens.")), (200, "Two wrens."))
    for what, body, why in (("no PDF", b"wren", "no PDF that can be read"), ("a PDF without text", pdf_of(b""), "has no text"),
                            ("an empty file", b"", "no PDF"), ("much text", b"%FAKE long", "more than 1 MiB")):
        status, said = read_pdf(server, body)
        check(f"{what} is refused with the reason", status == 400 and why in said, (status, said))
    equal("the program that reads it has no network, changes no file, meets no other process, has 1 GiB of memory, no file, no environment",
          read_pdf(server, b"%FAKE escape"), (200, "[] MemoryError ['0', '1', '2', '3'] ['LANG', 'LC_CTYPE']"))  # 3 is the folder that it lists
    path = os.path.join(tmp, "birds.PDF")
    with open(path, "wb") as f:
        f.write(pdf_of(b"Three robins."))
    element(b, "attach-file").send_keys(path)
    until(lambda: texts(b, "#files li span") == ["birds.PDF"], "the attached PDF")
    say(b, "And these?")
    equal("its text is a part of the message", server.request("GET", f"/v1/conversations/{current(b)}/items?order=desc")[2]["data"][1]["content"][0]["text"],
          'File "birds.PDF":\nThree robins.')
    with open(path, "wb") as f:
        f.write(b"%PDF-1.4 broken")
    element(b, "attach-file").send_keys(path)
    until(lambda: "birds.PDF: the file is no PDF" in texts(b, "#notice")[0], "that the PDF is broken")

    def sleep():
        while (got := read_pdf(server, b"%FAKE sleep"))[0] == 429:  # the question below is being answered
            pass
        slow.append(got)
    threading.Thread(target=sleep).start()
    until(lambda: read_pdf(server, b"")[0] == 429, "that one is being read")


def test_slow_pdf(b, slow):
    if shutil.which("pdftotext") is None:
        return
    until(lambda: slow, "the end of the PDF that takes long")
    check("a PDF that takes longer than 20 s is refused", slow[0][0] == 400 and "20 s" in slow[0][1], slow)


def test_export(b, server):
    b.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": tmp})
    old = current(b)
    press(b, "Export")
    path = os.path.join(tmp, "Which birds are these.json")
    until(lambda: os.path.exists(path), "the exported file")
    with open(path, encoding="utf-8") as f:
        kept = json.load(f)
    equal("an exported conversation has its title and its items", [kept["title"], [i["role"] for i in kept["items"]]],
          ["Which birds are these?", ["user", "assistant"]])
    element(b, "import-file").send_keys(path)
    until(lambda: current(b) not in ("", old) and len(all_of(b, "#talk .user")) == 1, "the imported one")
    said = [[[c["text"] for c in i["content"]] for i in server.request("GET", f"/v1/conversations/{id}/items?order=asc")[2]["data"]]
            for id in (old, current(b))]
    equal("an imported conversation says the same", said[1], said[0])
    check("and goes on", len(say(b, "Thank you.")) > 0)
    n = len(server.request("GET", "/v1/conversations?limit=100")[2]["data"])
    with open(os.path.join(tmp, "other.json"), "w", encoding="utf-8") as f:
        f.write('{"items": 3}')
    element(b, "import-file").send_keys(os.path.join(tmp, "other.json"))
    until(lambda: "other.json is not a conversation" in texts(b, "#notice")[0], "that another file is none")
    equal("and nothing was made of it", len(server.request("GET", "/v1/conversations?limit=100")[2]["data"]), n)


def test_requests(b, server):
    body = {"model": "default", "max_tokens": 4, "messages": [{"role": "user", "content": "A message of an agent. " * 20}]}
    for _ in range(2):
        id = server.post("/v1/messages", body)[2]["id"]
    press_first(b, "#requests summary")
    shown = until(lambda: texts(b, "#requests-list li") and texts(b, "#requests-list li")[0], "the requests")
    check("requests of other programs are listed with what was found", " tokens found" in shown, shown)
    one = server.request("GET", "/v1/requests/" + id)[2]
    equal("the server knows the request by its answer's id", [one["id"], one["restoration"]["prompt_tokens"] > 64], [id, True])
    press_first(b, "#requests-list .open")
    until(lambda: all_of(b, "#requests-list .restoration") or all_of(b, "#requests-list .line"), "its picture")
    shot(b, "requests")


def test_thoughts(b, server):
    opened(b, f"http://127.0.0.1:{server.port}/")
    answer = say(b, "How many?")
    equal("a thought is folded in front of its answer",
          [answer, texts(b, "#talk .thought summary"), all_of(b, "#talk .thought div")[0].get_attribute("textContent")],
          ["Two.", ["Thoughts"], "I count them."])
    b.refresh()
    until(lambda: len(all_of(b, "#talk .assistant > .foot")) == 1, "the conversation")
    equal("also after a reload", [texts(b, "#talk .assistant .said"), all_of(b, "#talk .thought div")[0].get_attribute("textContent")],
          [["Two."], "I count them."])
    check("it is closed until the reader opens it", not all_of(b, "#talk .thought")[0].get_attribute("open"))
    shot(b, "thoughts")


def test_cut(b, between, options):
    opened(b, f"http://127.0.0.1:{between.port}/")
    say(b, "Good morning.")
    before, id = texts(b, "#talk .said"), current(b)
    between.is_armed = True
    element(b, "text").send_keys("Tell me a story." + Keys.ENTER)
    until(lambda: all_of(b, "#talk .cut"), "the end of the server")
    cut = texts(b, "#talk .said")
    check("an answer that a killed server cut off keeps what was read",
          cut[:len(before)] == before and cut[len(before)] == "Tell me a story." and len(cut) == len(before) + 2 and cut[-1] != "", cut)
    check("and says what happened", "in the middle of the answer" in texts(b, "#talk .mark")[-1], texts(b, "#talk .mark"))
    shot(b, "cut")
    element(b, "text").send_keys("A newer draft.")
    between.server = Server("models/demo", *options)
    until(lambda: texts(b, "#alive") == ["ready"], "the server")
    b.refresh()
    until(lambda: all_of(b, "#talk .cut"), "the cut answer after a reload")
    equal("it is still there after a restart and a reload", texts(b, "#talk .said"), cut)
    equal("and so is the draft, which is newer", element(b, "text").get_attribute("value"), "A newer draft.")
    press(b, "Send again", "#talk .cut")
    until(lambda: is_idle(b) and not all_of(b, "#talk .cut") and len(all_of(b, "#talk .assistant > .foot")) == len(before) // 2 + 1,
          "the answer")
    said = texts(b, "#talk .said")
    check("the message is sent again, once", said[:len(before) + 1] == [*before, "Tell me a story."] and current(b) == id, said)
    b.refresh()
    until(lambda: len(all_of(b, "#talk .assistant > .foot")) == len(before) // 2 + 1, "the conversation")
    equal("then nothing is left of the first try", texts(b, "#talk .said"), said)


def run(server, size, dark, *parts):
    b = browser(size=size, dark=dark)
    try:
        for part, *arguments in parts:
            part(b, *arguments)
        check("no script error, nothing refused by the policy", not complaints(b), complaints(b))
    finally:
        shot(b, "last")
        b.quit()
        server.stop()


try:
    fake = os.path.join(tmp, "bin", "pdftotext")
    os.makedirs(os.path.dirname(fake))
    with open(fake, "w") as f:
        f.write(FAKE)
    os.chmod(fake, 0o755)
    server = Server("models/demo", "--store", os.path.join(tmp, "s"), env={"PATH": os.path.dirname(fake)})
    slow = []
    run(server, DESKTOP, False, (opened, f"http://127.0.0.1:{server.port}/"), (test_branches, server), (test_search,),
        (test_files, server), (test_export, server), (test_pdf, server, slow), (test_requests, server), (test_slow_pdf, slow))
    server = Server(scripted_model.make(os.path.join(tmp, "thinks"), hello="<think>I count them.</think>Two."),
                    "--store", os.path.join(tmp, "t"))
    run(server, PHONE, True, (test_thoughts, server))
    options = ["--store", os.path.join(tmp, "c"), "--speculate", "off"]
    between = Between(Server("models/demo", *options))
    run(between, DESKTOP, True, (test_cut, between, options))
    between.server.stop()
except Exception as e:  # noqa: BLE001
    import traceback
    check("the whole story", False, f"{type(e).__name__}: {e}\n{traceback.format_exc()}")
end()
