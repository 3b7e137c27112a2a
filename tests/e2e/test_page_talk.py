"""Messages of the page in a real browser: Markdown that must do no harm, copy, try again, edit,
rename, settings and drafts. Also conversations that are nearly full, full, or empty.

A scripted model gives the answers that the test wants. Without a browser this test is skipped
(browser.py)."""
import json
import os

from browser import (DESKTOP, PHONE, Keys, again_where_stale, all_of, browser, complaints, element, press,
                     press_first, say, shot, texts, until)
import scripted_model
from serve_client import Server
from tap import check, end, equal, scratch

CODE = "for (int i = 0; i < 3; i++)\n    puts(\"<b>no element</b>\");"
GOOD = f"""# A heading

Some **bold**, *slanted* and `code` words, and [a link](https://example.org/a?b=1).

```c
int {"a" * 1000};
```

```c
{CODE}
```

1. first
2. second
   - inner

| name | value |
|---|---|
| a | 1 |

> quoted

It costs $5 and $6. A root \\(\\sqrt{{x_1 + y_1}}\\), $a*b*c$, and

$$
\\frac{{a}}{{b}}
= \\sum_i x_i
$$
"""
# Each of these lines would run a script, load something or leave the page if the renderer passed
# HTML or any address through.
BAD = """<script>window.harmed = 1</script>
<img src=x onerror="window.harmed = 2">
[a](javascript:window.harmed=3) [b](JaVaScRiPt:alert(1)) [c](data:text/html,<script>1</script>) [d](vbscript:x)
[e](https://example.org/"onmouseover="window.harmed=4) ![f](https://example.org/x.png) <svg onload="window.harmed=5">
```<img/src=x/onerror=window.harmed=6>
</code></pre><script>window.harmed = 7</script>
```
**<iframe srcdoc="<script>parent.harmed = 8</script>"></iframe>** `<script>window.harmed = 9</script>`
| <script>window.harmed = 10</script> | b |
|---|---|
| [x](javascript:1) | <a href="javascript:1">y</a> |
$\\href{javascript:window.harmed=12}{x}$ \\(\\htmlData{onclick=window.harmed}{y}\\) $\\includegraphics{https://example.org/x.png}$
"""
tmp = scratch("talk")


def conversations(server):
    return server.request("GET", "/v1/conversations")[2]["data"]


def current(b):
    return b.execute_script("return location.hash.slice(1)")


def test_markdown(b, name):
    answer = say(b, "Show me Markdown.")
    check("the answer's words are there", "Some bold, slanted and code words" in answer, answer)
    said = "#talk .assistant .said "
    equal("Markdown becomes elements", [texts(b, said + e) for e in ("h3", "strong", "em", "p code", "a", "th", "td", "blockquote")],
          [["A heading"], ["bold"], ["slanted"], ["code"], ["a link"], ["name", "value"], ["a", "1"], ["quoted"]])
    check("lists are nested", len(all_of(b, said + "ol > li")) == 2 and texts(b, said + "ol ul li") == ["inner"], answer)
    equal("code is marked in colours", [texts(b, said + ".hljs-keyword"), texts(b, said + ".hljs-string")], [["for", "int"], ['"<b>no element</b>"']])
    equal("formulas become MathML, with the text that they were made from; prices do not",
          [b.execute_script("return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent.trim())", said + e)
           for e in ("p .math msqrt", ".math annotation", ".math.shown mfrac", "em")],
          [["x1+y1"], ["\\sqrt{x_1 + y_1}", "a*b*c", "\\frac{a}{b}\n= \\sum_i x_i"], ["ab"], ["slanted"]])
    check("prices are text", "It costs $5 and $6." in answer, answer)
    equal("a code block has its text as it is", all_of(b, said + "pre code")[1].get_attribute("textContent"), CODE)
    equal("a link leads where it says, in a tab of its own", [all_of(b, said + "a")[0].get_attribute(a) for a in ("href", "rel")],
          ["https://example.org/a?b=1", "noopener noreferrer"])
    shot(b, "markdown-" + name)


def test_copy(b):
    b.execute_script("window.copied = []; navigator.clipboard.writeText = async (t) => { window.copied.push(t); };")
    press(b, "Copy", "#talk .code")
    press(b, "Copy", "#talk .assistant > .foot")
    press(b, "Copy", "#talk .user")
    equal("a block, an answer and a message are copied as they were written",
          until(lambda: len(b.execute_script("return window.copied")) == 3 and b.execute_script("return window.copied"), "copies"),
          [CODE, GOOD.rstrip("\n"), "Show me Markdown."])


def test_harmless(server):
    b = browser()
    try:
        b.get(f"http://127.0.0.1:{server.port}/")
        until(lambda: all_of(b, "#talk .welcome"), "the page")
        equal("a server without a store does not promise to keep conversations", texts(b, "#talk .welcome"),
              ["Conversations last until the server stops. Start it with --store DIR to keep them."])
        say(b, "<img src=x onerror='window.harmed = 11'>")
        allowed = "div, span, p, h3, h4, h5, h6, ul, ol, li, blockquote, hr, pre, code, strong, em, del, a, table, tr, th, td, button, br, math, math *"
        found = b.execute_script(
            "return [...document.querySelectorAll('#talk .said *')].filter((e) => !e.matches(arguments[0])).map((e) => e.outerHTML)", allowed)
        equal("an answer adds no element but those of its Markdown", found, [])
        found = b.execute_script(
            "return [...document.querySelectorAll('#talk .said *')].flatMap((e) => [...e.attributes].map((a) => a.name))"
            ".filter((a) => !['class', 'href', 'target', 'rel', 'type', 'aria-label', 'tabindex', 'start', 'xmlns', 'encoding', 'mathcolor'].includes(a))")
        equal("nor an attribute", found, [])
        links = [e.get_attribute("href") for e in all_of(b, "#talk .said a")]
        check("links lead to web pages only", len(links) == 2 and all(u.startswith("https://example.org/") for u in links), links)
        b.execute_script("for (const e of document.querySelectorAll('#talk .said *'))"
                         " for (const t of ['mouseover', 'error', 'load']) e.dispatchEvent(new Event(t))")
        check("no script has run", b.execute_script("return window.harmed === undefined"))
        shown = texts(b, "#talk .assistant .said")[-1]
        check("what was not Markdown is shown as text", "<img src=x onerror" in shown and "javascript:window.harmed=3" in shown, shown)
        check("the page's policy had nothing to refuse", not complaints(b), complaints(b))
    finally:
        b.quit()


def test_again_and_edit(b, server):
    first = current(b)
    say(b, "And once more.")
    press(b, "Try again", "#talk .assistant")
    until(lambda: current(b) not in ("", first) and len(all_of(b, "#talk .assistant > .foot")) == 2, "the second try")
    equal("another try asks the same question on a branch", texts(b, "#talk .user .said"), ["Show me Markdown.", "And once more."])
    second = current(b)
    press(b, "Edit", "#talk .user")
    box = all_of(b, "#talk textarea.edit")[0]
    box.send_keys(" In prose.")
    shot(b, "edit")
    press(b, "Send on a branch", "#talk .user")
    until(lambda: current(b) not in ("", first, second) and len(all_of(b, "#talk .assistant > .foot")) == 2, "the edited question's answer")
    equal("an edited message is sent on a branch", texts(b, "#talk .user .said"), ["Show me Markdown.", "And once more. In prose."])
    press(b, "Edit", "#talk .user", 0)
    all_of(b, "#talk textarea.edit")[0].send_keys(" Only this.")
    press(b, "Send on a branch", "#talk .user", 0)
    until(lambda: texts(b, "#talk .user .said") == ["Show me Markdown. Only this."] and len(all_of(b, "#talk .assistant > .foot")) == 1,
          "the first question's answer")
    until(lambda: "tries" in json.dumps(conversations(server)), "the list of tries")
    b.refresh()
    until(lambda: texts(b, "#talk .user .beside span") == ["2 of 2"], "the arrows of the first message")
    again_where_stale(lambda: all_of(b, "#talk .user .beside button")[0].click())
    until(lambda: texts(b, "#talk .user .said")[:1] == ["Show me Markdown."], "the first try")
    until(lambda: texts(b, "#talk .user .beside span")[:1] == ["1 of 2"], "its arrows")
    again_where_stale(lambda: all_of(b, "#talk .user .beside button")[1].click())
    until(lambda: texts(b, "#talk .user .said") == ["Show me Markdown. Only this."], "the second try")
    equal("the others are as they were", sorted(c["turns"] for c in conversations(server)), [1, 2, 2, 2])
    items = server.request("GET", f"/v1/conversations/{first}/items?order=asc")[2]["data"]
    equal("answers are sampled at 0.7 without a setting",
          server.request("GET", f"/v1/responses/{items[0]['response_id']}")[2]["temperature"], 0.7)
    equal("the original has its messages", [i["content"][0]["text"] for i in items if i["role"] == "user"],
          ["Show me Markdown.", "And once more."])


def test_rename(b, server):
    press(b, "Rename")
    until(lambda: element(b, "name").is_displayed(), "the question for a title")
    element(b, "name").clear()
    element(b, "name").send_keys("Über <b>Vögel</b>" + Keys.ENTER)
    until(lambda: texts(b, "#title") == ["Über <b>Vögel</b>"], "the title")
    until(lambda: any("Über <b>Vögel</b>" in t for t in texts(b, "#list .open")), "the title in the list")
    check("the server has the title", conversations(server)[0]["title"] == "Über <b>Vögel</b>", conversations(server)[0])


def set_settings(b, **values):
    press(b, "Settings")
    until(lambda: element(b, "system").is_displayed(), "the settings")
    for name, text in values.items():
        element(b, name).clear()
        element(b, name).send_keys(text)
    shot(b, "settings")
    press(b, "Save", "#settings")
    until(lambda: not element(b, "system").is_displayed(), "the settings to be saved")


def test_settings(b, server):
    element(b, "new").send_keys(Keys.ENTER)
    until(lambda: current(b) == "", "a new conversation")
    system = "Answer like a pirate. " * 30  # longer than the metadata allows for one text
    set_settings(b, system=system, temperature="0.25", length="7")
    say(b, "Ahoy.")
    id = current(b)
    kept = server.request("GET", f"/v1/conversations/{id}/items?order=asc")[2]["data"][0]["response_id"]
    r = server.request("GET", f"/v1/responses/{kept}")[2]
    equal("an answer is made with the conversation's settings", [r["instructions"], r["temperature"], r["max_output_tokens"]],
          [system.strip(), 0.25, 7])
    b.refresh()
    until(lambda: len(all_of(b, "#talk .assistant > .foot")) == 1, "the conversation")
    press(b, "Settings")
    until(lambda: element(b, "system").is_displayed(), "the settings")
    equal("settings survive a reload", [element(b, n).get_attribute("value") for n in ("system", "temperature", "length")],
          [system.strip(), "0.25", "7"])
    press(b, "Cancel", "#settings")
    element(b, "new").send_keys(Keys.ENTER)
    until(lambda: current(b) == "", "a new conversation")
    press(b, "Settings")
    equal("and are not another conversation's", element(b, "system").get_attribute("value"), "")
    press(b, "Cancel", "#settings")


def go_to(b, i):
    """Opens the i-th conversation of the list and returns its id."""
    id = again_where_stale(lambda: all_of(b, "#list li")[i].get_attribute("data-id"))
    press_first(b, f"#list li[data-id='{id}'] .open")
    until(lambda: current(b) == id, "the conversation")
    return id


def test_drafts(b):
    box = element(b, "text")
    box.send_keys("for a new one")
    go_to(b, 0)
    equal("another conversation's box is empty", box.get_attribute("value"), "")
    box.send_keys("for the first")
    go_to(b, 1)
    equal("and so is the next one's", box.get_attribute("value"), "")
    go_to(b, 0)
    equal("a draft belongs to its conversation", box.get_attribute("value"), "for the first")
    b.refresh()
    until(lambda: len(all_of(b, "#talk .assistant")) > 0, "the conversation")
    equal("a draft survives a reload", element(b, "text").get_attribute("value"), "for the first")
    element(b, "text").clear()
    element(b, "text").send_keys("x" + Keys.BACKSPACE)
    element(b, "new").send_keys(Keys.ENTER)
    until(lambda: current(b) == "", "the new one")
    equal("the new conversation's draft, too", element(b, "text").get_attribute("value"), "for a new one")
    element(b, "text").clear()


def test_empty(server):
    """Neither a first message that cannot be answered nor a page that was closed leaves an empty conversation."""
    n = len(conversations(server))
    # the conversation that a page leaves behind if it is closed before the answer
    server.post("/v1/conversations", {"metadata": {"page": "new"}})
    b = browser()
    try:
        b.get(f"http://127.0.0.1:{server.port}/")
        until(lambda: texts(b, "#model")[0], "the model's name")
        until(lambda: all_of(b, "#talk .welcome") and len(all_of(b, "#list li")) == n, "the list")
        check("an empty conversation of the page is not listed", "Untitled" not in " ".join(texts(b, "#list")), texts(b, "#list"))
        element(b, "text").send_keys("too long " * 60 + Keys.ENTER)
        until(lambda: element(b, "notice").is_displayed(), "the refusal")
        check("a full conversation says so and offers ways on", "This conversation is full" in texts(b, "#notice")[0] and
              "New conversation" in texts(b, "#notice button"), texts(b, "#notice"))
        until(lambda: len(conversations(server)) == n + 1, "the refused message's conversation to go")
        check("a message that was refused stays in the box", "too long" in element(b, "text").get_attribute("value"))
        check("and is in no conversation", current(b) == "", current(b))
    finally:
        b.quit()


def test_full(server):
    for name, size, dark in (("desktop-light", DESKTOP, False), ("phone-dark", PHONE, True)):
        b = browser(size=size, dark=dark)
        try:
            b.get(f"http://127.0.0.1:{server.port}/")
            until(lambda: texts(b, "#model")[0], "the model's name")
            say(b, "How are you on this fine day?")
            check("no warning while there is room", not element(b, "room").is_displayed())
            n = 1
            while not element(b, "room").is_displayed():
                say(b, "How are you on this fine day?")
                n += 1
            used, limit = (int(x) for x in texts(b, "#room")[0].split(" tokens")[0].split(" of "))
            check("the warning comes from 80 % on", 0.8 * limit <= used <= limit, texts(b, "#room"))
            shot(b, "nearly-full-" + name)
            press(b, "Branch from the middle", "#room")
            until(lambda: 0 < len(all_of(b, "#talk .user")) < n, "the branch")
            check("a branch from the middle has room", not element(b, "room").is_displayed())
        finally:
            b.quit()


def run_good():
    server = Server(scripted_model.make(os.path.join(tmp, "good"), hello=GOOD.rstrip("\n")), "--store", os.path.join(tmp, "s"))
    b = browser(size=PHONE, dark=True)
    try:
        b.get(f"http://127.0.0.1:{server.port}/")
        until(lambda: texts(b, "#model")[0], "the model's name")
        test_markdown(b, "phone-dark")
        press(b, "Conversations")
        press_first(b, "#list .quiet")
        press(b, "Delete", "#ask")
        until(lambda: not conversations(server), "the conversation to go")
    finally:
        b.quit()
    b = browser()
    try:
        b.get(f"http://127.0.0.1:{server.port}/")
        until(lambda: texts(b, "#talk .welcome"), "the page")
        check("a server with one does", "restart the server, and pick up" in texts(b, "#talk .welcome")[0], texts(b, "#talk .welcome"))
        test_markdown(b, "desktop-light")
        test_copy(b)
        test_again_and_edit(b, server)
        test_rename(b, server)
        test_settings(b, server)
        test_drafts(b)
        check("no script error, nothing refused by the policy", not complaints(b), complaints(b))
    finally:
        shot(b, "last")
        b.quit()
        server.stop()


def run_bad():
    server = Server(scripted_model.make(os.path.join(tmp, "bad"), hello=BAD.rstrip("\n")))
    try:
        test_harmless(server)
    finally:
        server.stop()


def run_full():
    server = Server(scripted_model.make(os.path.join(tmp, "small"), context=320))
    try:
        test_empty(server)
        test_full(server)
    finally:
        server.stop()


try:
    for part in (run_good, run_bad, run_full):
        part()
except Exception as e:  # noqa: BLE001
    import traceback
    check("the whole story", False, f"{type(e).__name__}: {e}\n{traceback.format_exc()}")
end()
