"""The built-in page in a real browser: send, stream, reload, restart the server, continue, branch,
delete.

Without a browser this test is skipped (browser.py).  test_page_talk.py tests single messages."""
import http.server
import os
import re
import signal
import threading

from browser import (PHONE, By, Keys, all_of, browser, complaints, element, is_idle, press_first, say, shot, texts,
                     until)
from ports import free_port
from serve_client import SAVING, Server
from tap import check, end, equal, scratch

MODEL = "models/demo"
tmp = scratch("page")


class Loading:
    """Answers on this port as a server that is loading its model does."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = b'{"status": "loading"}'
            self.send_response(503)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    def __init__(self, port):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Loading.Answer)

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def test_talk(b, url):
    b.get(url)
    until(lambda: texts(b, "#model")[0], "the model's name")
    check("the page loads and names the model", "demo" in texts(b, "#model")[0], texts(b, "#model"))
    b.execute_script("window.seen = []; const look = () => window.seen.push($('title').textContent + $('list').textContent);"
                     "for (const id of ['title', 'list']) new MutationObserver(look).observe($(id), {childList: true, subtree: true});")
    # The first list, which has no title yet, arrives behind the second one.
    b.execute_script("const real = window.fetch; let n = 0, second; const seconds = new Promise((done) => second = done);"
                     "window.fetch = async (url, options) => { const r = await real(url, options);"
                     "  if (!String(url).startsWith('/v1/conversations?')) return r; const mine = ++n;"
                     "  if (mine == 2) setTimeout(second, 100);"
                     "  if (mine == 1) { await seconds; setTimeout(() => window.late = true, 100); } return r; };")
    first = say(b, "My name is Anna and my dog is called Rex.")
    check("an answer comes", len(first) > 0, first)
    until(lambda: b.execute_script("return window.late"), "the first list, behind the second")
    seen = b.execute_script("return window.seen")
    check("while it came its conversation was never untitled", len(seen) > 0 and not any("Untitled" in s for s in seen), seen)
    for i in range(6):
        say(b, f"Tell me something about dogs, please. This is question number {i + 2}.")
    feet = texts(b, "#talk .foot .line")
    check("later answers say what was still in memory, which is not called restored",
          any("still in memory" in t for t in feet) and not any("restored" in t for t in feet), feet)
    check("and how fast the answer came", all("tokens/s" in t or "1 token." in t for t in feet), feet)
    entries = texts(b, "#list .open")
    check("the conversation is in the list, by its first words", len(entries) == 1 and "My name is Anna" in entries[0], entries)
    check("no script error, nothing refused by the policy", not complaints(b), complaints(b))


def test_reload_and_restart(b, server, options):
    before = texts(b, "#talk .said")
    b.refresh()
    until(lambda: len(all_of(b, "#talk .said")) == len(before), "the same messages after a reload")
    check("a reload shows the same conversation", texts(b, "#talk .said") == before, texts(b, "#talk .said"))
    server.post("/v1/cache/flush", {})  # waits until saved state is durable
    server.p.send_signal(signal.SIGKILL)
    server.p.wait()
    until(lambda: texts(b, "#alive") == ["not reachable"], "the page to see that the server is away")
    check("a server that is away is shown as away, without its old figures", texts(b, "#stats h2") == [], texts(b, "#stats"))
    box = element(b, "text")
    box.send_keys("Are you there?" + Keys.ENTER)
    until(lambda: b.find_element(By.ID, "notice").is_displayed(), "a notice that the server is away")
    check("a server that is away is told, the text stays in the box",
          "does not answer" in texts(b, "#notice")[0] and box.get_attribute("value") == "Are you there?", texts(b, "#notice"))
    port = server.port
    with Loading(port):
        until(lambda: texts(b, "#alive") == ["loading the model"], "the page to see that the model is being loaded")
        check("a server that loads its model is shown as loading", "ready" not in texts(b, "#alive")[0])
        shot(b, "loading")
    server = Server(MODEL, *options, "--port", str(port))
    until(lambda: texts(b, "#alive") == ["ready"], "the page to see that the server is back")
    check("the complaint about the server goes when it is back", not element(b, "notice").is_displayed(), texts(b, "#notice"))
    box.send_keys(Keys.ENTER)
    until(lambda: len(all_of(b, "#talk .assistant")) * 2 == len(before) + 2 and is_idle(b),
          "an answer after the restart")
    foot = until(lambda: texts(b, "#talk .foot .line")[-1].strip(), "what was restored")
    check("kill -9, restart, go on: its state comes back", "restored from disk" in foot, foot)
    last = all_of(b, "#talk .assistant")[-1]
    opener = [x for x in last.find_elements(By.CSS_SELECTOR, ".foot button") if x.text == "Restoration"][0]
    opener.send_keys(Keys.ENTER)
    figure = until(lambda: last.find_element(By.CSS_SELECTOR, ".restoration"), "the picture")
    spans = figure.find_elements(By.CSS_SELECTOR, "rect.R, rect.H, rect.K")
    check("its restoration is drawn: lanes, layers, plan", len(spans) > 0 and "Plan" in figure.text, figure.text)
    test_agrees(foot, figure)
    shot(b, "restoration-light")
    check("what was said before is still there", texts(b, "#talk .said")[:len(before)] == before)
    return server


def test_agrees(foot, figure):
    """The sentence, the bar and the paragraphs give the same tokens and the same times."""
    drawn = [e.get_attribute("textContent") for e in figure.find_elements(By.CSS_SELECTOR, "rect title")]
    parts = re.findall(r"(\d+) (still in memory|restored from disk|computed)", foot)
    bar = re.findall(r"tokens (\d+) to (\d+): (still in memory|restored from disk|computed)", " ".join(drawn))
    check("picture and text name the same parts of the prompt", len(parts) > 1 and
          [(int(n), source) for n, source in parts] == [(int(end) - int(start), source) for start, end, source in bar], (foot, drawn))
    took = re.search(r"restored from disk in ([\d.]+ ms)", foot).group(1)
    check("and the same time", f"measured {took} (" in figure.text and f"restore {took}" in figure.text, (took, figure.text))
    lanes = [e.text for e in figure.find_elements(By.CSS_SELECTOR, "svg:not(:first-child) text") if e.text.endswith("%")]
    said = re.findall(r"(\d+ %)", figure.find_elements(By.TAG_NAME, "p")[0].text)
    check("and the same shares of busy time", len(lanes) == 4 and lanes == said, (lanes, said))


def test_branch_and_delete(b):
    n = len(texts(b, "#talk .said"))
    feet = all_of(b, "#talk .assistant")
    branch = [x for x in feet[1].find_elements(By.CSS_SELECTOR, ".foot button") if x.text == "Branch"][0]
    branch.send_keys(Keys.ENTER)
    until(lambda: len(all_of(b, "#talk .said")) == 4, "the branch: two turns")
    say(b, "Something else now.")
    check("a branch goes on by itself", len(all_of(b, "#talk .said")) == 6)
    check("there are two conversations", len(until(lambda: len(all_of(b, "#list li")) == 2 and all_of(b, "#list li"), "two")) == 2)
    press_first(b, "#list .open", lambda e: not e.get_attribute("aria-current"))
    until(lambda: len(all_of(b, "#talk .said")) == n, "the original")
    check("the original is as it was", len(texts(b, "#talk .said")) == n)
    for left in (1, 0):
        press_first(b, "#list button.quiet")
        until(lambda: b.find_element(By.ID, "ask").is_displayed(), "the question")
        if left == 1:
            shot(b, "delete")
            # the first choice keeps the conversation
            b.switch_to.active_element.send_keys(Keys.ENTER)
            until(lambda: not b.find_element(By.ID, "ask").is_displayed(), "the question to go")
            check("Enter alone deletes nothing", len(all_of(b, "#list li")) == 2)
            press_first(b, "#list button.quiet")
            until(lambda: b.find_element(By.ID, "ask").is_displayed(), "the question again")
        b.switch_to.active_element.send_keys(Keys.TAB)
        b.switch_to.active_element.send_keys(Keys.ENTER)
        until(lambda: len(all_of(b, "#list li")) == left, "one less")
    check("both are deleted", texts(b, "#list .open") == [])


def test_stop(b):
    box = element(b, "text")
    box.send_keys("Tell me a very long story." + Keys.ENTER)
    until(lambda: "".join(texts(b, "#talk .assistant .said")), "the first words: before them the message goes back into the box")
    b.find_element(By.TAG_NAME, "body").send_keys(Keys.ESCAPE)
    until(lambda: is_idle(b), "the end")
    check("Escape ends an answer, which stays as far as it came (or it had ended already)",
          box.get_attribute("value") == "" and len(all_of(b, "#talk .user")) == 1 and
          len(all_of(b, "#talk .assistant .foot")) == 1, texts(b, "#talk"))
    b.refresh()
    until(lambda: len(all_of(b, "#talk .assistant")) == 1, "the conversation again")
    check("and is there again", texts(b, "#talk .user .said") == ["Tell me a very long story."], texts(b, "#talk"))


# Contrasts, as WCAG defines them, of all elements that have a text of their own and are shown and enabled.
SHADES = """
const light = c => { const [r, g, b] = c.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
  .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b };
const ground = e => { while (e && /, 0\\)$|transparent/.test(getComputedStyle(e).backgroundColor)) e = e.parentElement;
  return getComputedStyle(e || document.body).backgroundColor };
const shown = [...document.querySelectorAll("body *")].filter(e => e.checkVisibility() && !e.disabled && !e.closest("svg")
  && [...e.childNodes].some(t => t.nodeType == 3 && t.data.trim()));
return { back: light(ground(document.body)), contrasts: shown.map(e => { const a = light(getComputedStyle(e).color), b = light(ground(e));
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) }) };
"""


def test_phone(server, url):
    made = server.post("/v1/conversations", {"title": "A long one"})[2]["id"]
    for i in range(10):
        server.post("/v1/responses", {"conversation": made, "max_output_tokens": 24, "temperature": 0,
                                      "input": f"Question {i}: what does the little bird sing in the tall green tree?"})
    for n, dark in ((10, False), (12, True)):
        b = browser(size=PHONE, dark=dark)
        try:
            b.get(url + "#" + made)
            until(lambda: len(all_of(b, "#talk .assistant")) == n and texts(b, "#talk .foot .line")[-1].strip(), "the conversation")
            check("on a phone the end of a long conversation is in view", until(lambda: b.execute_script(
                "const e = document.querySelector('#talk > li:last-child').getBoundingClientRect();"
                "const t = document.getElementById('talk').getBoundingClientRect();"
                "return e.bottom <= t.bottom + 1 && e.bottom > t.top;"), "the end in view"))
            shot(b, f"phone-long-{'dark' if dark else 'light'}")
            check("on a phone the list is behind a button", not element(b, "side").is_displayed())
            box = element(b, "text")
            check("the keyboard stays away until the user wants it", b.switch_to.active_element != box)
            box.send_keys("Hello" + Keys.ENTER + "from a phone." + Keys.ENTER)
            check("Enter on a touch keyboard starts a line and sends nothing",
                  box.get_attribute("value") == "Hello\nfrom a phone.\n" and len(all_of(b, "#talk .assistant")) == n,
                  box.get_attribute("value"))
            say(b, "Bye.")
            equal("the button sends all lines", texts(b, "#talk .user .said")[-1], "Hello\nfrom a phone.\nBye.")
            check("and the keyboard goes", b.switch_to.active_element != box)
            n_said = len(all_of(b, "#talk .assistant .foot"))
            box.send_keys("Good night." + Keys.CONTROL + Keys.ENTER + Keys.NULL)
            until(lambda: len(all_of(b, "#talk .assistant .foot")) > n_said and is_idle(b), "an answer")
            equal("so does Ctrl+Enter on a keyboard beside the screen", texts(b, "#talk .user .said")[-1], "Good night.")
            wide = b.execute_script("return document.documentElement.scrollWidth > window.innerWidth")
            check("nothing is wider than the phone", not wide)
            [x for x in all_of(b, ".foot button") if x.text == "Restoration"][-1].click()
            shot(b, f"phone-restoration-{'dark' if dark else 'light'}")
            element(b, "menu").click()
            check("the button shows it", element(b, "side").is_displayed())
            until(lambda: texts(b, "#stats h2"), "live figures")
            shot(b, f"phone-list-{'dark' if dark else 'light'}")
            shades = b.execute_script(SHADES)
            check(f"{'dark' if dark else 'light'} as the system is set", (shades["back"] < 0.2) == dark, shades)
            check("all texts stand out from their ground", len(shades["contrasts"]) > 30 and min(shades["contrasts"]) >= 4.5, shades)
            check("no script error on a phone", not complaints(b), complaints(b))
        finally:
            b.quit()


def test_key():
    server = Server(MODEL, "--api-key", "open-sesame-please", "--store", os.path.join(tmp, "keyed"))
    b = browser()
    try:
        b.get(f"http://127.0.0.1:{server.port}/")
        until(lambda: element(b, "key").is_displayed(), "the form for a key")
        element(b, "key-text").send_keys("wrong" + Keys.ENTER)
        until(lambda: "API key" in texts(b, "#notice")[0], "that the key is wrong")
        element(b, "key-text").send_keys("open-sesame-please" + Keys.ENTER)
        until(lambda: not element(b, "key").is_displayed(), "the key to be taken")
        check("a server with keys: the page asks for one", len(say(b, "Hello.")) > 0)
    finally:
        b.quit()
        server.stop()


options = ["--store", os.path.join(tmp, "store")]
port = str(free_port())
server = Server(MODEL, *options, "--port", port)
b = browser()
try:
    url = f"http://127.0.0.1:{server.port}/"
    test_talk(b, url)
    # From here on state is saved and restored whatever the disk's speed is.  (A forced plan does
    # not use state in memory.)
    options += SAVING
    server.kill()
    server = Server(MODEL, *options, "--port", str(server.port))
    say(b, "Once more, please.")
    server = test_reload_and_restart(b, server, options)
    test_branch_and_delete(b)
    test_stop(b)
    test_phone(server, url)
    test_key()
except Exception as e:  # noqa: BLE001
    shot(b, "failure")
    check("the whole story", False, f"{type(e).__name__}: {e}\nnotice: {texts(b, '#notice')}\n{b.get_log('browser')}")
finally:
    b.quit()
    server.stop()
end()
