// page.js - conversations in the browser, over the server's own API (docs/STATEFUL.md).
//
// The server is the truth: nothing is kept here but the API key (for this tab) and which conversation is
// open (in the address), so a reload, or a restart of the server, goes on where it was.
"use strict";

const $ = (id) => document.getElementById(id);
let open = null;        // the open conversation's id, or null: a new one
let oldest = null;      // the last id in the list, for "Older ones"
let sending = null;     // AbortController of the answer that is on its way

function make(tag, className, text) {
  const e = document.createElement(tag);
  if (className) e.className = className;
  if (text !== undefined) e.textContent = text;
  return e;
}
function button(text, className, onclick, label) {
  const b = make("button", className, text);
  b.type = "button";
  b.onclick = onclick;
  if (label) b.setAttribute("aria-label", label);
  return b;
}

// --- the API ------------------------------------------------------------------------------------

function notice(text, ...more) {
  $("notice").replaceChildren(text || "", ...more);
  $("notice").hidden = !text;
}

class Fault extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function ask(method, path, body, signal) {
  const headers = {}, key = sessionStorage.getItem("key");
  if (key) headers.Authorization = "Bearer " + key;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, {method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body)});
  } catch (e) {
    if (e.name === "AbortError") throw e;
    throw new Fault(0, "The server does not answer. It may be restarting: what was said is kept; try again.");
  }
  if (answer.ok) return answer;
  let message = "HTTP status " + answer.status;
  try { message = (await answer.json()).error.message; } catch { /* no JSON: the status must do */ }
  if (answer.status === 401) $("key").hidden = false;
  throw new Fault(answer.status, message);
}
const get = async (path) => (await ask("GET", path)).json();
const post = async (path, body) => (await ask("POST", path, body)).json();

// Runs something that the user asked for; a failure is shown.
async function attempt(f) {
  try {
    notice("");
    await f();
  } catch (e) {
    if (e.name !== "AbortError") notice(e.message);
    isSent = await stopped(li);
  }
}

// The events of a stream, as objects.
async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    rest += value;
    for (let end; (end = rest.indexOf("\n\n")) >= 0; rest = rest.slice(end + 2)) {
      const data = rest.slice(0, end).split("\n").filter((l) => l.startsWith("data:")).map((l) => l.slice(5).trim()).join("\n");
      if (data && data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

// --- the list of conversations --------------------------------------------------------------------

function when(seconds) {
  const d = new Date(seconds * 1000), today = new Date().toDateString() === d.toDateString();
  return today ? d.toLocaleTimeString([], {hour: "2-digit", minute: "2-digit"}) : d.toLocaleDateString();
}

function entry(c) {
  const li = make("li"), b = button("", "open", () => attempt(() => show(c.id)));
  const title = c.title || "Untitled";
  b.append(make("span", "", title), make("span", "when", `${c.turns} turn${c.turns === 1 ? "" : "s"}, ${when(c.updated_at)}`));
  if (c.id === open) b.setAttribute("aria-current", "true");
  li.append(b, button("Delete", "quiet", () => remove(c.id, title), `Delete conversation: ${title}`));
  li.dataset.id = c.id;
  return li;
}

async function list(after) {
  const page = await get("/v1/conversations?limit=30" + (after ? "&after=" + encodeURIComponent(after) : ""));
  const entries = page.data.map(entry);
  if (after) $("list").append(...entries);
  else $("list").replaceChildren(...entries);
  oldest = page.last_id;
  $("more").hidden = !page.has_more;
}

function remove(id, title) {
  const d = $("ask");
  $("ask-text").textContent = `Delete “${title}”? Its text and its saved state are erased; what other conversations share stays.`;
  d.onclose = () => d.returnValue === "yes" && attempt(async () => {
    await ask("DELETE", "/v1/conversations/" + id);
    if (id === open) await show(null);
    await list();
    $("new").focus();
  });
  d.returnValue = "no";
  d.showModal();
}

// --- the open conversation --------------------------------------------------------------------------

function textOf(item) {
  if (item.type === "message") return (item.content || []).map((c) => c.text ?? c.refusal ?? "").join("");
  if (item.type === "function_call") return `calls ${item.name}(${item.arguments})`;
  if (item.type === "function_call_output") return "result: " + item.output;
  return item.type;
}

function message(role, text) {
  const li = make("li", role === "user" || role === "assistant" ? role : "other");
  li.append(make("span", "unseen", role + ": "), make("p", "said", role === "user" || role === "assistant" ? text : `${role}: ${text}`));
  return li;
}

// What can be done with an answer, and how its state came to be.
function foot(li, response) {
  const bar = make("div", "foot"), line = make("span"), details = button("Restoration", "quiet", toggle);
  let figure = null;
  li.dataset.response = response;
  details.setAttribute("aria-expanded", "false");
  bar.append(line, details, button("Branch", "quiet", () => attempt(() => branch(response)), "Go on from here in another conversation"));
  li.append(bar);
  get(`/v1/responses/${response}/restoration`).then((r) => {
    line.textContent = Lanes.summary(r);
    figure = Lanes.figure(r, li.clientWidth);
  }, (e) => { // only the last answers are remembered
    details.hidden = true;
    line.textContent = e.status === 404 || e.status === 0 ? "" : e.message;
  });
  function toggle() {
    if (!figure) return;
    const shown = figure.isConnected;
    if (shown) figure.remove();
    else {
      li.append(figure);
      figure.scrollIntoView({block: "nearest"});
    }
    details.setAttribute("aria-expanded", String(!shown));
  }
}

async function branch(response) {
  const c = await post(`/v1/conversations/${open}/branch`, {at: response});
  await show(c.id);
  await list();
  $("text").focus();
}

function welcome() {
  $("talk").replaceChildren(make("li", "welcome", "What is said here is kept, with its state: close the page, restart the server, go on."));
}

async function items(id) {
  const all = [];
  for (let after = null, more = true; more;) {
    const page = await get(`/v1/conversations/${id}/items?order=asc&limit=100` + (after ? "&after=" + after : ""));
    all.push(...page.data);
    more = page.has_more && page.data.length > 0;
    after = page.last_id;
  }
  return all;
}

async function show(id) {
  if (sending) sending.abort();
  open = id;
  history.replaceState(null, "", id ? "#" + id : location.pathname);
  $("side").classList.remove("shown");
  $("menu").setAttribute("aria-expanded", "false");
  for (const b of document.querySelectorAll("#list .open"))
    b.toggleAttribute("aria-current", b.parentElement.dataset.id === id);
  if (!id) return welcome();
  const all = await items(id);
  if (open !== id) return; // another one was opened meanwhile
  $("talk").replaceChildren();
  all.forEach((item, i) => {
    const li = message(item.role || "tool", textOf(item)), next = all[i + 1];
    const isLast = !next || next.response_id !== item.response_id || next.role === "user";
    if (item.response_id && item.role === "assistant" && isLast) foot(li, item.response_id);
    $("talk").append(li);
  });
  if (!all.length) welcome();
  $("talk").scrollTop = $("talk").scrollHeight;
}

// --- sending ------------------------------------------------------------------------------------------

function busy(yes) {
  $("send").hidden = yes;
  $("stop").hidden = !yes;
}

function follow() { // only who is at the end wants to stay there
  const t = $("talk");
  if (t.scrollHeight - t.scrollTop - t.clientHeight < 120) t.scrollTop = t.scrollHeight;
}

function ended(li, response) {
  const said = li.querySelector(".said");
  if (response.status === "incomplete") {
    const length = (response.incomplete_details || {}).reason === "max_output_tokens";
    said.append(make("span", "when", length ? " … (the answer's length is at its bound)" : " … (stopped)"));
  }
  foot(li, response.id);
  if (response.conversation) return;
  notice("Somebody else went on with this conversation meanwhile; this answer is a branch of it. ",
         button("Open the branch", "", () => attempt(() => branch(response.id))));
}

async function stream(li, text, signal) {
  const said = li.querySelector(".said");
  const answer = await ask("POST", "/v1/responses", {input: text, conversation: open, stream: true}, signal);
  let isDone = false;
  for await (const e of events(answer)) {
    if (e.type === "response.created") li.dataset.asked = e.response.id;
    else if (e.type === "response.output_text.delta") said.append(e.delta);
    else if (e.type === "response.completed" || e.type === "response.incomplete") isDone = ended(li, e.response) || true;
    else if (e.type === "response.failed") throw new Fault(0, e.response.error.message);
    else if (e.type === "error") throw new Fault(0, e.message);
    follow();
  }
  if (!isDone) throw new Fault(0, "The server ended in the middle of the answer. The conversation is as it was before; send it again.");
}

// The server keeps the question and the answer so far as an incomplete turn, soon after the stream has been closed.
async function stopped(li) {
  for (let i = 0; i < 50 && li.dataset.asked; i++) {
    try {
      ended(li, await get(`/v1/responses/${li.dataset.asked}`));
      return true;
    } catch (e) {
      if (e.status !== 404) return false;
    }
    await new Promise((done) => setTimeout(done, 100));
  }
  return false;
}

async function send() {
  const text = $("text").value.trim();
  if (!text || sending) return;
  const mine = message("user", text), li = message("assistant", "");
  const control = sending = new AbortController();
  busy(true);
  let isSent = false;
  try {
    notice("");
    if (!open) {
      const c = await post("/v1/conversations", {});
      open = c.id;
      history.replaceState(null, "", "#" + open);
      $("talk").replaceChildren();
    }
    const welcome = document.querySelector("#talk .welcome");
    if (welcome) welcome.remove();
    $("talk").append(mine, li);
    $("talk").scrollTop = $("talk").scrollHeight;
    $("text").value = "";
    await stream(li, text, control.signal);
    isSent = true;
  } catch (e) {
    if (e.name !== "AbortError") notice(e.message);
  }
  if (sending === control) sending = null;
  busy(false);
  if (!isSent && li.isConnected) { // the turn is not kept: show it as it is
    mine.remove();
    li.remove();
    if (!$("text").value) $("text").value = text;
  }
  list().catch(() => {});
  if (isSent) $("text").focus();
}

// --- live figures ---------------------------------------------------------------------------------------

const bytes = (n) => n >= 1e9 ? (n / 1e9).toFixed(2) + " GB" : n >= 1e6 ? (n / 1e6).toFixed(1) + " MB" : Math.round(n / 1e3) + " kB";

function pairs(rows) {
  const dl = make("dl");
  for (const [k, v] of rows) dl.append(make("dt", "", k), make("dd", "", v));
  return dl;
}

function tier(t) {
  const parts = [make("h2", "", "Store: " + t.name)];
  if (t.chunks === undefined) return parts; // only an administrator's key sees the rest
  if (t.cap_bytes) {
    const m = make("meter");
    m.max = t.cap_bytes;
    m.value = t.used_bytes;
    m.setAttribute("aria-label", `${t.name}: ${bytes(t.used_bytes)} of ${bytes(t.cap_bytes)}`);
    parts.push(m);
  }
  const seen = t.chunk_hits + t.chunk_misses;
  parts.push(pairs([["used", bytes(t.used_bytes) + (t.cap_bytes ? " of " + bytes(t.cap_bytes) : "")],
                    ["chunks", String(t.chunks)],
                    ["chunk hits", seen ? Math.round(100 * t.chunk_hits / seen) + " %" : "none yet"],
                    ...(t.corrupt ? [["damaged, not used", String(t.corrupt)]] : [])]));
  return parts;
}

async function stats() {
  if (document.hidden) return;
  try {
    const s = await get("/v1/cache/stats"), p = s.prompts;
    const share = (n) => `${n} (${Math.round(100 * n / Math.max(1, p.device_tokens + p.restored_tokens + p.computed_tokens))} %)`;
    $("alive").textContent = p.running || p.open ? `${p.running || p.open} running` : "ready";
    $("stats").replaceChildren(...s.tiers.flatMap(tier), make("h2", "", "Tokens of prompts since the start"),
      pairs([["still on the device", share(p.device_tokens)], ["restored", share(p.restored_tokens)],
             ["computed", share(p.computed_tokens)], ["restores", String(p.restores)]]));
  } catch (e) {
    $("alive").textContent = e.status ? "" : "no answer";
  }
}

// --- start ----------------------------------------------------------------------------------------------

async function start() {
  const models = await get("/v1/models");
  $("model").textContent = models.data[0].id;
  $("key").hidden = true;
  const id = location.hash.slice(1);
  await list();
  try {
    await show(id || null);
  } catch (e) {
    await show(null);
    if (e.status === 404) throw new Fault(404, "That conversation does not exist (any more).");
    throw e;
  }
}

$("compose").onsubmit = (e) => { e.preventDefault(); send(); };
$("text").onkeydown = (e) => {
  if (e.key === "Enter" && !e.shiftKey && !e.isComposing) {
    e.preventDefault();
    send();
  }
};
$("stop").onclick = () => sending && sending.abort();
$("new").onclick = () => attempt(async () => { await show(null); $("text").focus(); });
$("more").onclick = () => attempt(() => list(oldest));
$("menu").onclick = () => $("menu").setAttribute("aria-expanded", String($("side").classList.toggle("shown")));
$("key").onsubmit = (e) => {
  e.preventDefault();
  sessionStorage.setItem("key", $("key-text").value);
  $("key-text").value = "";
  attempt(start);
};
document.onkeydown = (e) => {
  if (e.key === "Escape" && sending && !$("ask").open) sending.abort();
};
window.onhashchange = () => attempt(() => show(location.hash.slice(1) || null));
attempt(start).then(() => $("text").focus());
stats();
setInterval(stats, 2000);
