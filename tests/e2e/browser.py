"""A real browser for the tests of the page: Chromium, driven by selenium.

Chromium, its driver and selenium are distribution packages (`tools/setup.sh --test` installs them).
Selenium may also be in .venv/ (`tools/setup.sh --clients`).  If this Python has no selenium,
importing this module starts the test again with a Python that has it: .venv's, or the
distribution's.  If there is none, or if Chromium does not start on this machine, the test is
skipped with the reason.

HCACHE_SHOTS=DIR keeps screenshots in DIR."""
import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import time

import tap
from tap import PATIENCE

PYTHONS = (".venv/bin/python", "/usr/bin/python3")  # python3 in PATH may not be the distribution's


WHAT_IS_USED = "from selenium.webdriver.chrome.service import Service"


def skip(why):
    print(f"1..0 # SKIP {why}")
    sys.exit(0)


try:
    from selenium import webdriver
    from selenium.common.exceptions import StaleElementReferenceException, WebDriverException
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys  # noqa: F401 - for the tests
except ImportError:
    for python in filter(os.path.exists, PYTHONS):
        if subprocess.run([python, "-c", WHAT_IS_USED], capture_output=True).returncode == 0:
            os.execv(python, [python, *sys.argv])
    skip("there is no selenium (tools/setup.sh --test installs it)")
BINARY, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
if not BINARY or not DRIVER:
    skip("there is no chromium with chromedriver (tools/setup.sh --test installs them)")

SHOTS = os.environ.get("HCACHE_SHOTS")
DESKTOP, PHONE = (1280, 800), (390, 844)
# Number of attempts to start a browser. On a busy machine Chromium may need longer than its driver
# waits.
STARTS = 3
profiles = tempfile.mkdtemp(prefix="hcache-browser.")
atexit.register(shutil.rmtree, profiles, ignore_errors=True)


def started(options):
    """Returns a browser. If a test's first browser does not start, Chromium cannot run here (for
    example in a container without name spaces). This does not depend on the page, so the test is
    skipped with Chromium's message."""
    for i in range(STARTS):
        options.arguments[:] = [a for a in options.arguments if not a.startswith("--user-data-dir=")]
        options.add_argument(f"--user-data-dir={tempfile.mkdtemp(dir=profiles)}")
        try:
            return webdriver.Chrome(options=options, service=Service(DRIVER))
        except WebDriverException as e:
            fault = (e.msg or "").split("\n")[0]
    if tap.n_results > 0:
        raise RuntimeError(f"Chromium started before, and now does not: {fault}")
    skip(f"Chromium does not start here: {fault}")


def browser(*arguments, size=DESKTOP, dark=False):
    """Returns a browser whose page has this size.  Sizes below 500 emulate a phone, since no window
    can be that small."""
    o = webdriver.ChromeOptions()
    o.binary_location = BINARY
    # --no-sandbox: Chromium does not start as root otherwise.  It only shows pages of the server
    # under test.
    for a in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", *arguments):
        o.add_argument(a)
    o.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    b = started(o)
    b.set_script_timeout(PATIENCE)
    width, height = size
    b.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "mobile": width < 500,
                                                             "deviceScaleFactor": 2 if width < 500 else 1})
    if width < 500:
        b.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True})
    b.execute_cdp_cmd("Emulation.setEmulatedMedia",
                      {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})
    return b


def until(condition, what):
    """Waits until the condition has a true value, and returns it.  An element that has just
    disappeared counts as not true yet."""
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


def again_where_stale(act):
    """Returns what act() returns. The page redraws its list after each change on the server, which
    removes the elements that act() uses. act() is then repeated with the new elements. A key for a
    removed element has no effect, so nothing is done twice."""
    while True:
        try:
            return act()
        except StaleElementReferenceException:
            pass


def texts(b, css):
    return again_where_stale(lambda: [e.text for e in all_of(b, css)])


def element(b, name):
    return b.find_element(By.ID, name)


def is_idle(b):
    return element(b, "send").is_displayed()


def say(b, text):
    """Types the text and sends it: with the button on a touch screen, else with Enter. Returns the
    answer when its footer says where its state came from."""
    n = len(all_of(b, "#talk .assistant .foot"))
    is_touch = b.execute_script("return matchMedia('(pointer: coarse)').matches")
    element(b, "text").send_keys(text + ("" if is_touch else Keys.ENTER))
    if is_touch:
        element(b, "send").click()
    until(lambda: len(all_of(b, "#talk .assistant .foot")) > n and is_idle(b), "an answer")
    until(lambda: texts(b, "#talk .foot .line")[-1].strip(), "how its state came to be")
    return texts(b, "#talk .assistant .said")[-1]


def press(b, label, within="body", which=-1):
    """Presses the button with this label, by keyboard."""
    again_where_stale(lambda: [x for x in all_of(b, within + " button") if x.text == label][which].send_keys(Keys.ENTER))


def press_first(b, css, wanted=lambda e: True):
    """Presses the first matching element, by keyboard."""
    again_where_stale(lambda: next(e for e in all_of(b, css) if wanted(e)).send_keys(Keys.ENTER))


def complaints(b):
    """Returns the browser's complaints about the page: script errors and violations of the content
    policy, but not a server that cannot be reached."""
    harmless = ("Failed to fetch", "net::ERR", "404", "503", "status of 400")
    return [m for m in b.get_log("browser") if m["level"] == "SEVERE" and not any(h in m["message"] for h in harmless)]
