// talk.js - the messages of the open conversation as elements, with the actions for each.
//
// A list element has `said` (its text), `files` (texts of attached files, as Files.part makes them), data-turn (the
// response that it belongs to, once the server has kept it) and data-item (its item, if it came from the server).
"use strict";

const Talk = (() => {
  // Hints for the reader, by the place where the server keeps conversations.
  const WELCOME = {
    file: "Conversations are saved. Close this page or restart the server, and pick up where you left off.",
    memory: "Conversations last until the server stops. Start it with --store DIR to keep them.",
    none: "This server keeps no conversations (--conversations none).",
  };
  let isAtEnd = true; // the reader is at the end of the list, which then scrolls on by itself

  const box = () => $("talk");

  function toEnd() {
    if (isAtEnd) box().scrollTop = box().scrollHeight;
  }

  function watch() {
    box().onscroll = () => { isAtEnd = box().scrollHeight - box().scrollTop - box().clientHeight < 60; };
    new MutationObserver(toEnd).observe(box(), {childList: true, subtree: true, characterData: true});
    new ResizeObserver(toEnd).observe(box());
  }

  function clear() {
    isAtEnd = true;
    box().replaceChildren();
  }

  function welcome() {
    clear();
    box().append(make("li", "welcome", WELCOME[keptIn] || WELCOME.file));
  }

  function setText(li, text) {
    li.said = text;
    const said = li.querySelector(".said");
    if (li.classList.contains("assistant")) Markdown.show(said, text);
    else said.textContent = text;
  }

  // Shows the thought before an answer, folded.
  function setThought(li, text) {
    let d = li.querySelector(".thought");
    if (!d) {
      d = make("details", "thought");
      d.append(make("summary", "", "Thoughts"), make("div"));
      li.querySelector(".said").before(d);
    }
    d.lastElementChild.textContent = text;
  }

  function setFiles(li, files) {
    li.files = files;
    for (const text of files) {
      const {name, content} = Files.read(text), d = make("details", "file");
      d.append(make("summary", "", name), make("div", "", content));
      li.querySelector(".said").before(d);
    }
  }

  function message(role, text, item, files = []) {
    const isTalk = role === "user" || role === "assistant";
    const li = make("li", isTalk ? role : "other");
    li.role = role;
    li.append(make("span", "unseen", role + ": "), make("div", "said"));
    setText(li, isTalk ? text : `${role}: ${text}`);
    if (!isTalk) li.said = text;
    setFiles(li, files);
    if (item) {
      li.dataset.item = item.id;
      li.dataset.turn = item.response_id || item.id;
    }
    if (role === "user") li.append(userBar(li));
    return li;
  }

  // --- turns: what "try again" and "edit" need ---

  // Returns the input of li's turn, with `text` in place of the user's last message, and the turn that it continues (null: none).
  function turnOf(li, text) {
    const id = li.dataset.turn, input = [];
    let e = li;
    while (e.previousElementSibling && e.previousElementSibling.dataset.turn === id) e = e.previousElementSibling;
    const before = e.previousElementSibling;
    for (; e && e.dataset.turn === id; e = e.nextElementSibling)
      if (e.role !== "assistant") input.push({role: e.role, said: e.said, files: e.files});
    const last = input.findLast((m) => m.role === "user") || {said: "", files: []};
    if (text !== undefined) last.said = text;
    return {input: input.map((m) => ({role: m.role, content: Files.content(m.said, m.files)})), text: last.said, files: last.files,
            at: before ? before.dataset.turn : null};
  }

  function edit(li) {
    const said = li.querySelector(".said"), bar = li.querySelector(".foot");
    const text = make("textarea", "edit"), keys = make("div", "foot");
    const end = () => { text.remove(); keys.remove(); said.hidden = bar.hidden = false; };
    text.value = li.said;
    text.rows = Math.min(12, li.said.split("\n").length + 1);
    text.setAttribute("aria-label", "Edited message");
    keys.append(button("Send on a branch", "", () => attempt(async () => {
      const turn = turnOf(li, text.value.trim());
      if (!turn.text) return;
      end();
      await again(turn);
    })), button("Cancel", "quiet", end));
    said.hidden = bar.hidden = true;
    li.append(text, keys);
    text.focus();
  }

  function userBar(li) {
    const bar = make("div", "foot");
    const b = button("Copy", "quiet", () => copy(li.said, b), "Copy this message");
    bar.append(b, button("Edit", "quiet", () => edit(li), "Edit this message and send it on a branch"));
    return bar;
  }

  // --- an answer's foot ---

  const seen = new IntersectionObserver((entries) => {
    for (const e of entries) {
      if (!e.isIntersecting) continue;
      seen.unobserve(e.target);
      e.target.load();
    }
  });

  // Marks the first turn that the model still sees. r: the restoration of the last answer.
  async function markWindow(last, r) {
    const from = r.truncated_tokens + r.kept_tokens;
    let first = last;
    for (let li = last; li; li = li.previousElementSibling) {
      if (!li.dataset.response) continue;
      if (!li.dataset.end) {
        const x = await get(`/v1/responses/${li.dataset.response}/restoration`);
        li.dataset.end = x.prompt_tokens + x.generated_tokens;
      }
      if (Number(li.dataset.end) <= from) break;
      first = li;
    }
    while (first.previousElementSibling && first.previousElementSibling.dataset.turn === first.dataset.turn)
      first = first.previousElementSibling;
    for (const old of document.querySelectorAll("#talk .window")) old.remove();
    first.prepend(make("div", "window", `The model sees the conversation from about here on, and its first ${r.kept_tokens} tokens. ` +
      `${r.truncated_tokens} tokens between them are not seen any more.`));
    used(0);
  }

  // Adds the answer's turn, the source of its state, and its actions.
  function foot(li, response) {
    const bar = make("div", "foot"), line = make("span", "line", " "), details = button("Restoration", "quiet", toggle);
    const b = button("Copy", "quiet", () => copy(li.said, b), "Copy this answer");
    let figure = null;
    for (let e = li; e && !(e.dataset.turn && e.dataset.turn !== response); e = e.previousElementSibling) e.dataset.turn = response;
    li.dataset.response = response;
    details.setAttribute("aria-expanded", "false");
    bar.append(line, b, button("Try again", "quiet", () => attempt(() => again(turnOf(li))), "Ask again on a branch"),
               button("Branch", "quiet", () => attempt(() => branch(response)), "Go on from here in another conversation"), details);
    li.append(bar);
    bar.load = async () => {
      try {
        const r = await get(`/v1/responses/${response}/restoration`);
        line.textContent = Lanes.summary(r);
        figure = Lanes.figure(r, li.clientWidth);
        li.dataset.end = r.prompt_tokens + r.generated_tokens;
        if (!li.isConnected || li.nextElementSibling) return;
        if (r.truncated_tokens) await markWindow(li, r);
        else used(r.prompt_tokens + r.generated_tokens);
      } catch (e) { // turns that an old version has kept have no restoration
        details.hidden = true;
        line.textContent = e.status === 404 || e.status === 0 ? "" : e.message;
      }
    };
    seen.observe(bar);
    function toggle() {
      if (!figure) return;
      const isShown = figure.isConnected;
      isAtEnd = isAtEnd && !li.nextElementSibling;
      if (isShown) figure.remove();
      else li.append(figure);
      if (!isShown) figure.scrollIntoView({block: "nearest"});
      details.setAttribute("aria-expanded", String(!isShown));
    }
  }

  function mark(li, text) {
    li.append(make("p", "mark", text));
  }

  // Says why an answer is not whole and not kept. again, gone: the user's two ways on.
  function cut(li, why, again, gone) {
    const bar = make("div", "foot cut");
    mark(li, why);
    bar.append(button("Send again", "", again), button("Remove", "quiet", gone, "Remove this message"));
    li.append(bar);
  }

  // Adds arrows to the turns that have others beside them (/v1/conversations/ID/branches). go: opens a conversation.
  function branches(places, go) {
    for (const {response_id, branches: all} of places) {
      const li = [...box().children].find((e) => e.dataset.turn === response_id), i = all.findIndex((b) => b.response_id === response_id);
      if (!li || i < 0 || all.length < 2) continue;
      const bar = make("span", "beside"), bars = li.querySelector(".foot");
      const arrow = (text, to, label) => {
        const b = button(text, "quiet", () => go(to.conversation), label);
        b.disabled = !to.conversation;
        return b;
      };
      bar.append(arrow("\u2039", all[i - 1] || {}, "Earlier branch"), make("span", "", `${i + 1} of ${all.length}`),
                 arrow("\u203a", all[i + 1] || {}, "Later branch"));
      (bars || li).append(bar);
    }
  }

  // --- a whole conversation ---

  function textOf(item) {
    if (item.type === "message") return (item.content || []).filter((c) => item.role !== "user" || !isFile(c)).map((c) => c.text ?? c.refusal ?? "").join("");
    if (item.type === "function_call") return `calls ${item.name}(${item.arguments})`;
    if (item.type === "function_call_output") return "result: " + item.output;
    return item.type;
  }

  const isFile = (c) => Files.read(c.text || "") !== null;

  function show(items) {
    if (!items.length) return welcome();
    clear();
    let thought = "";
    items.forEach((item, i) => {
      if (item.type === "reasoning") { // the message that follows shows it
        thought += textOf({...item, type: "message"});
        const after = items[i + 1];
        if (after && after.response_id === item.response_id && (after.role === "assistant" || after.type === "reasoning")) return;
        item = {...item, role: "assistant", type: "message", content: []};
      }
      const files = item.role === "user" ? (item.content || []).filter(isFile).map((c) => c.text) : [];
      const li = message(item.role || "tool", textOf(item), item, files), next = items[i + 1];
      if (thought && item.role === "assistant") setThought(li, thought);
      thought = "";
      const isLast = !next || next.response_id !== item.response_id || next.role === "user";
      box().append(li);
      if (!item.response_id || item.role !== "assistant" || !isLast) return;
      if (item.status === "incomplete") mark(li, "This answer is incomplete. Go on, or try again.");
      foot(li, item.response_id);
    });
    toEnd();
  }

  const answers = () => [...document.querySelectorAll("#talk .assistant[data-response]")].map((li) => li.dataset.response);

  function add(...elements) {
    const w = document.querySelector("#talk .welcome");
    if (w) w.remove();
    isAtEnd = true;
    box().append(...elements);
  }

  return {watch, welcome, message, setText, setThought, foot, mark, cut, branches, show, add, answers};
})();
