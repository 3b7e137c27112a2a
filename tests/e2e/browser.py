"""A real browser for the tests of the page: Chromium, driven by selenium.

Chromium, its driver and selenium are distribution packages (`tools/setup.sh --test` installs them); a selenium in .venv/
will do, too.  Importing this module goes on in .venv's Python where this one has no selenium.  Where none has, it
prints why the test is skipped and ends it.
HCACHE_SHOTS=DIR keeps screenshots there."""
import atexit
import os
import shutil
import sys
import tempfile
import time

from tap import PATIENCE

VENV = ".venv/bin/python"


def skip(why):
    print(f"1..0 # SKIP {why} (tools/setup.sh --test installs it)")
    sys.exit(0)


try:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys  # noqa: F401 - for the tests
except ImportError:
    if "HCACHE_IN_VENV" not in os.environ and os.path.exists(VENV):
        os.execve(VENV, [VENV, *sys.argv], {**os.environ, "HCACHE_IN_VENV": "1"})
    skip("there is no selenium")
BINARY, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if not BINARY or not DRIVER:
    skip("there is no chromium with chromedriver")

SHOTS = os.environ.get("HCACHE_SHOTS")
DESKTOP, PHONE = (1280, 800), (390, 844)
profiles = tempfile.mkdtemp(prefix="hcache-browser.")
atexit.register(shutil.rmtree, profiles, ignore_errors=True)


def browser(*arguments, size=DESKTOP, dark=False):
    """A browser whose page has this size; sizes below 500 are a phone's, to which no window can be made."""
    o = webdriver.ChromeOptions()
    o.binary_location = BINARY
    for a in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
              f"--user-data-dir={tempfile.mkdtemp(dir=profiles)}", *arguments):
        o.add_argument(a)
    o.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    b = webdriver.Chrome(options=o, service=Service(DRIVER))
    b.set_script_timeout(PATIENCE)
    width, height = size
    b.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "mobile": width < 500,
                                                             "deviceScaleFactor": 2 if width < 500 else 1})
    b.execute_cdp_cmd("Emulation.setEmulatedMedia",
                      {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})
    return b


def until(condition, what):
    """The condition's value once it is true. An element that has just gone counts as not yet."""
    end = time.time() + PATIENCE
    while time.time() < end:
        try:
            value = condition()
        except Exception:  # noqa: BLE001
            value = None
        if value:
            return value
        time.sleep(0.05)
    raise TimeoutError(what)


def shot(b, name):
    if SHOTS:
        os.makedirs(SHOTS, exist_ok=True)
        b.save_screenshot(os.path.join(SHOTS, name + ".png"))


def all_of(b, css):
    return b.find_elements(By.CSS_SELECTOR, css)


def texts(b, css):
    return [e.text for e in all_of(b, css)]


def element(b, name):
    return b.find_element(By.ID, name)


def is_idle(b):
    return element(b, "send").is_displayed()


def say(b, text):
    """Types the text, presses Enter, and returns the answer once its foot says how its state came to be."""
    n = len(all_of(b, "#talk .assistant .foot"))
    element(b, "text").send_keys(text + Keys.ENTER)
    until(lambda: len(all_of(b, "#talk .assistant .foot")) > n and is_idle(b), "an answer")
    until(lambda: texts(b, "#talk .foot .line")[-1].strip(), "how its state came to be")
    return texts(b, "#talk .assistant .said")[-1]


def press(b, label, within="body", which=-1):
    """Presses the button of that text by keyboard."""
    found = [x for x in all_of(b, within + " button") if x.text == label]
    found[which].send_keys(Keys.ENTER)


def complaints(b):
    """What the browser says against the page: script errors, refusals of the policy. Not: a server that is away."""
    harmless = ("Failed to fetch", "net::ERR", "404", "503", "status of 400")
    return [m for m in b.get_log("browser") if m["level"] == "SEVERE" and not any(h in m["message"] for h in harmless)]
