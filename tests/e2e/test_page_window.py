"""A conversation in the page continues past its window, and the page marks the turn at which the
window begins.

The expected turn is computed from the restorations that the server reports.  Without a browser this
test is skipped (browser.py)."""
import os
import re
import tempfile

from browser import all_of, browser, complaints, element, press, say, shot, texts, until
from serve_client import Server
from tap import check, end, equal

MODEL, WINDOW, STEP, KEEP = "models/demo", 256, 128, 64
LONG = "Tell me about the little bird who lived in the tall green tree. " * 2
MARKED = "The model sees the conversation from about here on, and its first (\\d+) tokens. (\\d+) tokens between"


def ask(b, server):
    """Sends a message and returns the restoration of its answer."""
    said = say(b, LONG)
    shown = all_of(b, "#talk .assistant[data-response]")[-1].get_attribute("data-response")
    r = server.request("GET", f"/v1/responses/{shown}/restoration")[2]
    check(f"turn {len(all_of(b, '#talk .user'))} is answered", said != "" and r["generated_tokens"] > 0, r)
    return r


def mark(b):
    """Returns the number of the user's message that has the mark, and the numbers in the mark.
    Returns None unless there is exactly one mark."""
    found = [(i, t.text) for i, li in enumerate(all_of(b, "#talk .user")) for t in li.find_elements("css selector", ".window")]
    if len(found) != 1 or len(all_of(b, "#talk .window")) != 1:
        return None
    m = re.match(MARKED, found[0][1])
    return (found[0][0], int(m[1]), int(m[2])) if m else None


def expected(turns):
    """Returns the expected result of mark(): the first turn that reaches past the first token still
    in view."""
    last = turns[-1]
    begins = last["truncated_tokens"] + KEEP
    return next(i for i, r in enumerate(turns) if r["prompt_tokens"] + r["generated_tokens"] > begins), KEEP, last["truncated_tokens"]


def marked_right(b, turns):
    want = expected(turns)
    found = until(lambda: (m := mark(b)) and m[1:] == want[1:] and m, "a mark with the last answer's numbers")
    equal("the mark is at the turn where the window begins", found, want)


def run(server, b):
    b.get(f"http://127.0.0.1:{server.port}/")
    until(lambda: texts(b, "#model")[0], "the model's name")
    press(b, "Settings")
    until(lambda: element(b, "length").is_displayed(), "the settings")
    element(b, "temperature").send_keys("0")
    element(b, "length").send_keys("8")
    press(b, "Save", "#settings")
    until(lambda: not element(b, "length").is_displayed(), "the settings to be saved")

    turns = [ask(b, server)]
    check("nothing is marked while the model sees everything", turns[0]["truncated_tokens"] == 0 and not all_of(b, "#talk .window"))
    while turns[-1]["truncated_tokens"] < 2 * STEP and len(turns) < 20:
        turns.append(ask(b, server))
        if turns[-1]["truncated_tokens"]:
            marked_right(b, turns)
    last = turns[-1]
    check("the conversation has gone on past its window, by two steps",
          last["truncated_tokens"] == 2 * STEP and last["prompt_tokens"] > WINDOW, last)
    check("the window does not begin with the first turn", expected(turns)[0] > 0, expected(turns))
    check("no warning says that it is full", not element(b, "room").is_displayed() and not element(b, "notice").is_displayed())
    shot(b, "window")

    b.refresh()
    until(lambda: len(all_of(b, "#talk .user")) == len(turns), "the conversation")
    marked_right(b, turns)
    turns.append(ask(b, server))
    marked_right(b, turns)
    check("no script error, nothing refused by the policy", not complaints(b), complaints(b))


with tempfile.TemporaryDirectory(prefix="hcache-window.") as tmp:
    server = Server(MODEL, "--store", os.path.join(tmp, "s"), "--truncate", f"{STEP / WINDOW},context={WINDOW},keep={KEEP}")
    b = browser()
    try:
        run(server, b)
    except Exception as e:  # noqa: BLE001
        import traceback
        check("the whole story", False, f"{type(e).__name__}: {e}\n{traceback.format_exc()}")
    finally:
        b.quit()
        server.stop()
end()
