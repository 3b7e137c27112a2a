"""The built-in page in a real browser: send, stream, reload, restart the server, go on, branch, delete.

Chromium and its driver are distribution packages and selenium lies in .venv/ (`tools/setup.sh --dev`);
without them this test is skipped.  HCACHE_SHOTS=DIR keeps screenshots there."""
import os
import shutil
import signal
import sys
import tempfile
import time

VENV = ".venv/bin/python"
if "HCACHE_IN_VENV" not in os.environ:
    if not os.path.exists(VENV):
        print("1..0 # SKIP selenium is not here (tools/setup.sh --dev makes .venv)")
        sys.exit(0)
    os.execve(VENV, [VENV, *sys.argv], {**os.environ, "HCACHE_IN_VENV": "1"})

sys.path.insert(0, os.path.dirname(__file__))
from serve_client import Server  # noqa: E402
from tap import PATIENCE, check, end  # noqa: E402

try:
    from selenium import webdriver
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
except ImportError:
    print("1..0 # SKIP .venv has no selenium (tools/setup.sh --dev)")
    sys.exit(0)
BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if not BROWSER or not DRIVER:
    print("1..0 # SKIP chromium and chromedriver are not here (tools/setup.sh --dev)")
    sys.exit(0)

MODEL = "models/demo"
SHOTS = os.environ.get("HCACHE_SHOTS")
tmp = tempfile.mkdtemp(prefix="hcache-page.")


def until(condition, what):
    end = time.time() + PATIENCE
    while time.time() < end:
        try:
            value = condition()
        except Exception:  # noqa: BLE001 - the page is in between: an element has just gone
            value = None
        if value:
            return value
        time.sleep(0.05)
    raise TimeoutError(what)


def browser(*, width=1200, height=900, dark=False):
    o = webdriver.ChromeOptions()
    o.binary_location = BROWSER
    for a in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--window-size={width},{height}",
              f"--user-data-dir={tempfile.mkdtemp(dir=tmp)}"):
        o.add_argument(a)
    o.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    b = webdriver.Chrome(options=o, service=webdriver.ChromeService(DRIVER))
    b.execute_cdp_cmd("Emulation.setEmulatedMedia",
                      {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})
    if width < 500:  # a phone: the window itself cannot be as narrow
        b.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                          {"width": width, "height": height, "deviceScaleFactor": 2, "mobile": True})
    return b


def shot(b, name):
    if SHOTS:
        os.makedirs(SHOTS, exist_ok=True)
        b.save_screenshot(os.path.join(SHOTS, name + ".png"))


def all_of(b, css):
    return b.find_elements(By.CSS_SELECTOR, css)


def texts(b, css):
    return [e.text for e in all_of(b, css)]


def say(b, text):
    """Types it, presses Enter, and waits for the answer's foot. All by keyboard."""
    n = len(all_of(b, "#talk .foot"))
    box = b.find_element(By.ID, "text")
    box.send_keys(text)
    box.send_keys(Keys.ENTER)
    until(lambda: len(all_of(b, "#talk .foot")) > n and b.find_element(By.ID, "send").is_displayed(), "an answer")
    until(lambda: texts(b, "#talk .foot > span")[-1], "what was restored")
    return texts(b, "#talk .assistant .said")[-1]


def complaints(b):
    return [m for m in b.get_log("browser") if m["level"] == "SEVERE" and "Failed to fetch" not in m["message"] and
            "net::ERR" not in m["message"] and "404" not in m["message"]]


def test_talk(b, url):
    b.get(url)
    until(lambda: texts(b, "#model")[0], "the model's name")
    check("the page loads and names the model", "demo" in texts(b, "#model")[0], texts(b, "#model"))
    first = say(b, "My name is Anna and my dog is called Rex.")
    check("an answer comes", len(first) > 0, first)
    for i in range(6):
        say(b, f"Tell me something about dogs, please. This is question number {i + 2}.")
    feet = texts(b, "#talk .foot > span")
    check("later answers say what was restored", any("restored from" in t for t in feet), feet)
    entries = texts(b, "#list .open")
    check("the conversation is in the list, by its first words", len(entries) == 1 and "My name is Anna" in entries[0], entries)
    check("no script error, nothing refused by the policy", not complaints(b), complaints(b))


def test_reload_and_restart(b, server, options):
    before = texts(b, "#talk .said")
    b.refresh()
    until(lambda: len(all_of(b, "#talk .said")) == len(before), "the same messages after a reload")
    check("a reload shows the same conversation", texts(b, "#talk .said") == before, texts(b, "#talk .said"))
    server.p.send_signal(signal.SIGKILL)
    server.p.wait()
    box = b.find_element(By.ID, "text")
    box.send_keys("Are you there?" + Keys.ENTER)
    until(lambda: b.find_element(By.ID, "notice").is_displayed(), "a notice that the server is away")
    check("a server that is away is told, the text stays in the box",
          "does not answer" in texts(b, "#notice")[0] and box.get_attribute("value") == "Are you there?", texts(b, "#notice"))
    port = server.port
    server = Server(MODEL, *options, "--port", str(port))
    box.send_keys(Keys.ENTER)
    until(lambda: len(all_of(b, "#talk .assistant")) * 2 == len(before) + 2 and b.find_element(By.ID, "send").is_displayed(),
          "an answer after the restart")
    foot = until(lambda: texts(b, "#talk .foot > span")[-1], "what was restored")
    check("kill -9, restart, go on: its state comes back", "restored from disk" in foot, foot)
    last = all_of(b, "#talk .assistant")[-1]
    opener = [x for x in last.find_elements(By.CSS_SELECTOR, ".foot button") if x.text == "Restoration"][0]
    opener.send_keys(Keys.ENTER)
    figure = until(lambda: last.find_element(By.CSS_SELECTOR, ".restoration"), "the picture")
    spans = figure.find_elements(By.CSS_SELECTOR, "rect.R, rect.H, rect.K")
    check("its restoration is drawn: lanes, layers, plan", len(spans) > 0 and "Plan" in figure.text, figure.text)
    shot(b, "restoration-light")
    check("what was said before is still there", texts(b, "#talk .said")[:len(before)] == before)
    return server


def test_branch_and_delete(b):
    n = len(texts(b, "#talk .said"))
    feet = all_of(b, "#talk .assistant")
    branch = [x for x in feet[1].find_elements(By.CSS_SELECTOR, ".foot button") if x.text == "Branch"][0]
    branch.send_keys(Keys.ENTER)
    until(lambda: len(all_of(b, "#talk .said")) == 4, "the branch: two turns")
    say(b, "Something else now.")
    check("a branch goes on by itself", len(all_of(b, "#talk .said")) == 6)
    check("there are two conversations", len(until(lambda: len(all_of(b, "#list li")) == 2 and all_of(b, "#list li"), "two")) == 2)
    other = [e for e in all_of(b, "#list .open") if not e.get_attribute("aria-current")][0]
    other.send_keys(Keys.ENTER)
    until(lambda: len(all_of(b, "#talk .said")) == n, "the original")
    check("the original is as it was", len(texts(b, "#talk .said")) == n)
    for left in (1, 0):
        all_of(b, "#list button.quiet")[0].send_keys(Keys.ENTER)
        until(lambda: b.find_element(By.ID, "ask").is_displayed(), "the question")
        if left == 1:
            shot(b, "delete")
            b.switch_to.active_element.send_keys(Keys.ENTER)  # the first choice keeps it
            until(lambda: not b.find_element(By.ID, "ask").is_displayed(), "the question to go")
            check("Enter alone deletes nothing", len(all_of(b, "#list li")) == 2)
            all_of(b, "#list button.quiet")[0].send_keys(Keys.ENTER)
            until(lambda: b.find_element(By.ID, "ask").is_displayed(), "the question again")
        b.switch_to.active_element.send_keys(Keys.TAB)
        b.switch_to.active_element.send_keys(Keys.ENTER)
        until(lambda: len(all_of(b, "#list li")) == left, "one less")
    check("both are deleted", texts(b, "#list .open") == [])


def test_stop(b):
    box = b.find_element(By.ID, "text")
    box.send_keys("Tell me a very long story." + Keys.ENTER)
    until(lambda: len(all_of(b, "#talk .assistant")) == 1, "the answer's place")
    b.find_element(By.TAG_NAME, "body").send_keys(Keys.ESCAPE)
    until(lambda: b.find_element(By.ID, "send").is_displayed(), "the end")
    check("Escape ends an answer, which stays as far as it came (or it had ended already)",
          box.get_attribute("value") == "" and len(all_of(b, "#talk .user")) == 1 and
          len(all_of(b, "#talk .foot")) == 1, texts(b, "#talk"))
    b.refresh()
    until(lambda: len(all_of(b, "#talk .assistant")) == 1, "the conversation again")
    check("and is there again", texts(b, "#talk .user .said") == ["Tell me a very long story."], texts(b, "#talk"))


def test_phone(url):
    b = browser(width=390, height=760, dark=True)
    try:
        b.get(url)
        until(lambda: texts(b, "#model")[0], "the model's name")
        check("on a phone the list is behind a button", not b.find_element(By.ID, "side").is_displayed())
        say(b, "Hello from a phone.")
        wide = b.execute_script("return document.documentElement.scrollWidth > window.innerWidth")
        check("nothing is wider than the phone", not wide)
        [x for x in all_of(b, ".foot button") if x.text == "Restoration"][-1].click()
        shot(b, "phone-dark")
        b.find_element(By.ID, "menu").click()
        check("the button shows it", b.find_element(By.ID, "side").is_displayed())
        until(lambda: texts(b, "#stats h2"), "live figures")
        shot(b, "phone-list-dark")
    finally:
        b.quit()


def test_key():
    server = Server(MODEL, "--api-key", "open-sesame-please", "--store", os.path.join(tmp, "keyed"))
    b = browser()
    try:
        b.get(f"http://127.0.0.1:{server.port}/")
        until(lambda: b.find_element(By.ID, "key").is_displayed(), "the form for a key")
        b.find_element(By.ID, "key-text").send_keys("wrong" + Keys.ENTER)
        until(lambda: "API key" in texts(b, "#notice")[0], "that the key is wrong")
        b.find_element(By.ID, "key-text").send_keys("open-sesame-please" + Keys.ENTER)
        until(lambda: not b.find_element(By.ID, "key").is_displayed(), "the key to be taken")
        check("a server with keys: the page asks for one", len(say(b, "Hello.")) > 0)
    finally:
        b.quit()
        server.stop()


options = ["--store", os.path.join(tmp, "store")]
server = Server(MODEL, *options)
b = browser()
try:
    url = f"http://127.0.0.1:{server.port}/"
    test_talk(b, url)
    server = test_reload_and_restart(b, server, options)
    test_branch_and_delete(b)
    test_stop(b)
    test_phone(url)
    test_key()
except Exception as e:  # noqa: BLE001
    shot(b, "failure")
    check("the whole story", False, f"{type(e).__name__}: {e}\nnotice: {texts(b, '#notice')}\n{b.get_log('browser')}")
finally:
    b.quit()
    server.stop()
    shutil.rmtree(tmp, ignore_errors=True)
end()
