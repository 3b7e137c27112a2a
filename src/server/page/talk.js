// talk.js - the messages of the open conversation as elements, with the actions for each.
//
// A list element has `said` (its text), data-turn (the response that it belongs to, once the server has kept it)
// and data-item (its item, if it came from the server).
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

  function message(role, text, item) {
    const isTalk = role === "user" || role === "assistant";
    const li = make("li", isTalk ? role : "other");
    li.role = role;
    li.append(make("span", "unseen", role + ": "), make("div", "said"));
    setText(li, isTalk ? text : `${role}: ${text}`);
    if (!isTalk) li.said = text;
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
      if (e.role !== "assistant") input.push({role: e.role, content: e.said});
    const last = input.findLast((m) => m.role === "user");
    if (last && text !== undefined) last.content = text;
    return {input, text: last ? last.content : "", at: before ? before.dataset.turn : null};
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

  // --- a whole conversation ---

  function textOf(item) {
    if (item.type === "message") return (item.content || []).map((c) => c.text ?? c.refusal ?? "").join("");
    if (item.type === "function_call") return `calls ${item.name}(${item.arguments})`;
    if (item.type === "function_call_output") return "result: " + item.output;
    return item.type;
  }

  function show(items) {
    if (!items.length) return welcome();
    clear();
    items.forEach((item, i) => {
      const li = message(item.role || "tool", textOf(item), item), next = items[i + 1];
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

  return {watch, welcome, message, setText, foot, mark, show, add, answers};
})();
