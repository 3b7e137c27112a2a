// page.js - conversations in the browser, over the server's own API (docs/STATEFUL.md).
//
// The server keeps all content. This page keeps three things for its tab: the API key, unsent drafts, and (in the
// address) which conversation is open. So a reload, or a restart of the server, goes on where it was.
"use strict";

let open = null;          // the open conversation's object; null: a new one that the server does not know yet
let oldest = null;        // the last id in the list, for "Older conversations"
let limit = 0;            // tokens of the model's context
let keptIn = "file";      // where the server keeps conversations: "file", "memory" or "none"
let fresh = {};           // settings of the new conversation
const sending = new Map(); // running answers by conversation id ("new": no id yet)

const WARN_SHARE = 0.8;   // share of the context at which the page warns; the same as in the terminal and the API
const UNUSED_S = 3600;    // seconds after which a conversation of this page without a turn is removed

// On a touch screen Enter starts a line, since its keyboard has no Shift+Enter. The keyboard covers
// half the screen, so it closes when a message is sent and opens only when the user taps the box.
const touch = matchMedia("(pointer: coarse)");

const openId = () => (open ? open.id : "new");

function notice(text, ...more) {
  $("notice").replaceChildren(text || "", ...more);
  $("notice").hidden = !text;
}

// Runs an action of the user, and shows its failure.
async function attempt(f) {
  try {
    notice("");
    await f();
  } catch (e) {
    if (e.name !== "AbortError") notice(e.message);
  }
}

// --- the list of conversations --------------------------------------------------------------------

function when(seconds) {
  const d = new Date(seconds * 1000), today = new Date().toDateString() === d.toDateString();
  return today ? d.toLocaleTimeString([], {hour: "2-digit", minute: "2-digit"}) : d.toLocaleDateString();
}

// A conversation has no title before its first answer has ended, nor a branch before its own first
// one. Until then the list shows its question, or what it is a branch of.
function titleOf(c) {
  const running = sending.get(c.id), from = c.metadata.branch_of;
  return c.title || (running ? running.question.said.slice(0, 80) : from ? "Branch of " + from : "Untitled");
}

function entry(c) {
  const li = make("li"), b = button("", "open", () => attempt(() => show(c.id)));
  const title = titleOf(c), said = sending.has(c.id) ? "answering" : plural(c.turns, "turn");
  b.append(make("span", "", title), make("span", "when", `${said}, ${when(c.updated_at)}`));
  if (c.id === openId()) b.setAttribute("aria-current", "true");
  li.append(b, button("Delete", "quiet", () => remove(c.id, title), `Delete conversation: ${title}`));
  li.dataset.id = c.id;
  return li;
}

// This page makes a conversation before its first answer. If that answer never came, the
// conversation is empty. The list leaves it out, and removes it once no answer can be on its way.
function isEmpty(c) {
  const empty = !c.turns && c.metadata.page === "new" && !sending.has(c.id) && !cutOf(c.id);
  if (empty && Date.now() / 1000 - c.updated_at > UNUSED_S)
    ask("DELETE", "/v1/conversations/" + c.id).catch(() => {});
  return empty;
}

// Shows the newest conversations, or with `after` the next older ones. If another request for the
// list began meanwhile, the answer is dropped: it may lack a title that the page shows already.
let listings = 0;
async function list(after) {
  const mine = ++listings, query = $("query").value.trim();
  const page = await get("/v1/conversations?limit=30" + (after ? "&after=" + encodeURIComponent(after) : "") +
                         (query ? "&query=" + encodeURIComponent(query) : ""));
  if (mine !== listings) return;
  const entries = page.data.filter((c) => !isEmpty(c)).map(entry);
  if (after) $("list").append(...entries);
  else $("list").replaceChildren(...entries);
  oldest = page.last_id;
  $("more").hidden = !page.has_more;
  $("found").hidden = !query;
  $("found").textContent = $("list").children.length ? "" : page.has_more ? "Nothing found so far." : "Nothing found.";
  const now = page.data.find((c) => c.id === openId());
  if (now) named(now);
}

function remove(id, title) {
  const d = $("ask");
  $("ask-text").textContent = `Delete “${title}”? Its text and its saved state are erased. Parts that other conversations share stay.`;
  d.onclose = () => d.returnValue === "yes" && attempt(async () => {
    await ask("DELETE", "/v1/conversations/" + id);
    sessionStorage.removeItem("draft:" + id);
    keepCut(id, null);
    if (id === openId()) await show(null);
    await list();
    $("new").focus();
  });
  d.returnValue = "no";
  d.showModal();
}

// --- drafts: what is typed belongs to the open conversation ------------------------------------------

function keepDraft(id, text) {
  if (text) sessionStorage.setItem("draft:" + id, text);
  else sessionStorage.removeItem("draft:" + id);
  if (id === openId()) $("text").value = text;
}

// --- messages whose answer broke off, and was not kept by the server ---------------------------------

const cutOf = (id) => JSON.parse(sessionStorage.getItem("cut:" + id));

function keepCut(id, cut) {
  if (cut) sessionStorage.setItem("cut:" + id, JSON.stringify(cut));
  else sessionStorage.removeItem("cut:" + id);
}

// Shows the message at the end of its conversation, unless the server has kept its answer after all.
function showCut(id, all) {
  const cut = cutOf(id);
  if (!cut || sending.has(id)) return;
  if (all.some((item) => item.response_id && item.response_id === cut.response)) return keepCut(id, null);
  const question = Talk.message("user", cut.text, null, cut.files), li = Talk.message("assistant", cut.answer);
  const gone = () => { keepCut(id, null); question.remove(); li.remove(); };
  if (cut.thought) Talk.setThought(li, cut.thought);
  Talk.cut(li, cut.why, () => attempt(() => { gone(); return say(cut.text, cut.files); }), gone);
  Talk.add(question, li);
}

// --- settings: kept by the server in the conversation's metadata, whose texts have at most 512 bytes -----

const SETTINGS = ["temperature", "length"], PIECE_BYTES = 500, MAX_PIECES = 8;

// Small models ramble at the API's own default, temperature 1.
const SAMPLING = {temperature: 0.7, min_p: 0.05};

function settings() {
  if (!open) return fresh;
  const m = open.metadata, out = {};
  for (const name of SETTINGS) if (m[name]) out[name] = m[name];
  for (let i = 0; m["system" + i]; i++) out.system = (out.system || "") + m["system" + i];
  return out;
}

function metadataOf(s, old = {}) {
  const m = Object.fromEntries(Object.entries(old).filter(([k]) => !SETTINGS.includes(k) && !/^system\d$/.test(k)));
  for (const name of SETTINGS) if (s[name]) m[name] = s[name];
  let piece = 0, bytes = 0;
  for (const c of s.system || "") {
    const n = new TextEncoder().encode(c).length;
    if (bytes + n > PIECE_BYTES) [piece, bytes] = [piece + 1, 0];
    if (piece === MAX_PIECES) throw new Fault(0, `The system prompt is too long: at most ${PIECE_BYTES * MAX_PIECES} bytes.`);
    m["system" + piece] = (m["system" + piece] || "") + c;
    bytes += n;
  }
  return m;
}

async function saveSettings() {
  const s = {system: $("system").value.trim(), temperature: $("temperature").value, length: $("length").value};
  const metadata = metadataOf(s, open ? open.metadata : {});
  if (open) open = await post("/v1/conversations/" + open.id, {metadata});
  else fresh = s;
}

function askSettings() {
  const s = settings();
  for (const name of ["system", ...SETTINGS]) $(name).value = s[name] || "";
  $("settings-fault").hidden = true;
  $("settings").showModal();
}

$("settings").onsubmit = async (e) => {
  e.preventDefault();
  try {
    await saveSettings();
    $("settings").close();
  } catch (fault) {
    $("settings-fault").textContent = fault.message;
    $("settings-fault").hidden = false;
  }
};

// --- the open conversation --------------------------------------------------------------------------

function named(c) {
  if (c && open) open = c;
  const title = c ? titleOf(c) : "New conversation";
  $("title").textContent = title;
  $("rename").hidden = $("export").hidden = !c;
  document.title = c && c.title ? title + " - hcache" : "hcache";
}

function rename() {
  $("name").value = open.title || "";
  $("naming").showModal();
  $("name").select();
}

$("naming").onsubmit = () => attempt(async () => {
  named(await post("/v1/conversations/" + open.id, {title: $("name").value.trim()}));
  await list();
});

// Warns if the context is nearly full. tokens: their number up to the end of the last answer.
function used(tokens) {
  const isFull = limit > 0 && tokens >= WARN_SHARE * limit;
  $("room").hidden = !isFull;
  if (isFull)
    $("room").replaceChildren(make("span", "", `${tokens} of ${limit} tokens of this conversation's context are used ` +
      `(${Math.floor(100 * tokens / limit)} %). Start a new conversation soon, or branch from an earlier answer.`), ...waysOut());
}

// Shows the choices for a full conversation. The draft moves to the new one.
function waysOut() {
  const move = async (f) => {
    const text = $("text").value;
    keepDraft(openId(), "");
    await f();
    keepDraft(openId(), text);
    $("text").focus();
  };
  const all = Talk.answers(), middle = all[Math.floor((all.length - 1) / 2)];
  const out = [button("New conversation", "", () => attempt(() => move(() => show(null))))];
  if (all.length > 1) out.push(button("Branch from the middle", "", () => attempt(() => move(() => branch(middle)))));
  return out;
}

async function branch(at, title = "") {
  const from = (open.title || open.metadata.branch_of || "").slice(0, 80);
  const {first = open.id, first_of} = open.metadata;
  const metadata = {...metadataOf(settings()), ...(from && {branch_of: from}), first, ...(first_of && {first_of})};
  const c = await post(`/v1/conversations/${open.id}/branch`, {at, title, metadata});
  await show(c.id);
  await list();
  $("text").focus();
}

// Returns the title of a conversation that begins with attached files: the server would take their first words.
const titleWith = (text, files) => (files && files.length ? [...text].slice(0, 60).join("") : "");

// Asks a turn again (Talk.turnOf): on a branch, or, if it is the first turn, in a new conversation.
async function again(turn) {
  const s = settings(), root = open && rootOf(open);
  if (turn.at) await branch(turn.at, titleWith(turn.text, turn.files));
  else await show(null);
  if (!turn.at) fresh = {...s, root};
  await say(turn.text, turn.files, turn.input);
}

// --- other tries of a first message: conversations of their own -------------------------------------
//
// metadata.first is the conversation in which a branch's first turn was made, first_of the one whose first message was
// tried again, and `tries` of the latter lists the others.

const MAX_TRIES_BYTES = 512; // the API's bound on a value

const rootOf = (c) => c.metadata.first_of || c.metadata.first || c.id;

async function addTry(root, id) {
  const {metadata} = await get("/v1/conversations/" + root), tries = ((metadata.tries || "") + " " + id).trim();
  if (tries.length <= MAX_TRIES_BYTES) await post("/v1/conversations/" + root, {metadata: {...metadata, tries}});
}

// Returns the tries in the form of /v1/conversations/ID/branches. turn: the first turn of the conversation c.
async function triesOf(c, turn) {
  const exists = (id) => get("/v1/conversations/" + id).then(() => true, () => false);
  const {id, metadata} = c.id === rootOf(c) ? c : await get("/v1/conversations/" + rootOf(c));
  if (!metadata.tries) return [];
  const all = [id, ...metadata.tries.split(" ")], own = c.metadata.first || c.id, here = await Promise.all(all.map(exists));
  return [{response_id: turn, branches: all.filter((_, i) => here[i]).map((other) => other === own
    ? {response_id: turn, conversation: c.id} : {response_id: other, conversation: other})}];
}

// Shows arrows between the branches of the open conversation.
async function showBranches(c, turn, isShown) {
  const places = (await get(`/v1/conversations/${c.id}/branches`)).data.concat(await triesOf(c, turn));
  if (isShown()) Talk.branches(places, (to) => attempt(() => show(to)));
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

function opened(c) {
  open = c;
  named(c);
  $("room").hidden = true;
  history.replaceState(null, "", c ? "#" + c.id : location.pathname);
  for (const b of document.querySelectorAll("#list .open"))
    b.toggleAttribute("aria-current", !!c && b.parentElement.dataset.id === c.id);
}

let asked = 0; // number of requests, by which the answer to an older request is recognised and dropped

async function show(id) {
  const mine = ++asked, left = openId(), typed = $("text").value;
  const [c, all] = id ? await Promise.all([get("/v1/conversations/" + id), items(id)]) : [null, []];
  if (asked !== mine) return;
  $("side").classList.remove("shown");
  $("menu").setAttribute("aria-expanded", "false");
  opened(c);
  if (!c) fresh = {};
  Talk.show(all);
  const running = sending.get(openId());
  if (running) Talk.add(running.question, running.li);
  showCut(openId(), all);
  // What was typed since the click is meant for the conversation that opens now.
  const since = $("text").value;
  if (since !== typed && left !== openId()) {
    keepDraft(left, typed);
    keepDraft(openId(), since);
  }
  $("text").value = sessionStorage.getItem("draft:" + openId()) || "";
  if (left !== openId()) Files.clear();
  busy();
  if (c && all.length) showBranches(c, all[0].response_id, () => asked === mine).catch(() => {});
}

// --- sending ------------------------------------------------------------------------------------------

function busy() {
  const running = sending.get(openId());
  $("send").hidden = !!running;
  $("stop").hidden = !running;
  $("stop").disabled = !!running && running.control.signal.aborted;
}

function ended(li, response) {
  const why = (response.incomplete_details || {}).reason;
  if (response.status === "incomplete")
    Talk.mark(li, why === "max_output_tokens" ? "This answer has reached its longest length." : "This answer was stopped.");
  Talk.foot(li, response.id);
  if (!limit) models().catch(() => {}); // the answer's model is loaded now, so its context is known
  if (response.conversation) return;
  notice("Another client went on with this conversation meanwhile. This answer is a branch of it. ",
         button("Open the branch", "", () => attempt(() => branch(response.id))));
}

async function request(id, input, s, signal) {
  const body = {input, conversation: id, stream: true, ...SAMPLING};
  if ($("pick")) body.model = $("pick").value;
  if (s.system) body.instructions = s.system;
  if (s.temperature) body.temperature = Number(s.temperature);
  if (s.length) body.max_output_tokens = Number(s.length);
  try {
    return await ask("POST", "/v1/responses", body, signal);
  } catch (e) { // the context may have less room than the longest answer. Then a shorter one is asked for
    if (e.code !== "context_length_exceeded" || !body.max_output_tokens) throw e;
    delete body.max_output_tokens;
    return ask("POST", "/v1/responses", body, signal);
  }
}

// Passes events on. A connection that breaks is a Fault, as an error of the server is.
async function* unbroken(all) {
  try {
    yield* all;
  } catch (e) {
    throw e.name === "AbortError" || e instanceof Fault ? e : new Fault(0, "The connection broke in the middle of the answer.");
  }
}

async function stream(running, answer) {
  const li = running.li;
  let isShown = true, isDone = false;
  const draw = () => {
    isShown = true;
    if (running.thought) Talk.setThought(li, running.thought);
    Talk.setText(li, running.text);
  };
  for await (const e of unbroken(events(answer))) {
    if (e.type === "response.created") running.response = e.response.id;
    else if (e.type === "response.output_text.delta" || e.type === "response.reasoning_text.delta") {
      running[e.type === "response.output_text.delta" ? "text" : "thought"] += e.delta;
      if (isShown) requestAnimationFrame(draw);
      isShown = false;
    } else if (e.type === "response.completed" || e.type === "response.incomplete") {
      draw();
      ended(li, e.response);
      isDone = true;
    } else if (e.type === "response.failed") throw new Fault(0, e.response.error.message);
    else if (e.type === "error") throw new Fault(0, e.message);
  }
  if (!isDone) throw new Fault(0, "The server ended in the middle of the answer.");
}

// The server keeps the question and the answer so far as an incomplete turn, soon after the stream has been closed.
async function stopped(running) {
  for (let i = 0; i < 600 && running.response; i++) {
    try {
      const r = await get(`/v1/responses/${running.response}`);
      const said = r.output.filter((o) => o.type === "message").flatMap((o) => o.content);
      Talk.setText(running.li, said.map((c) => c.text).join(""));
      ended(running.li, r);
      return true;
    } catch (e) {
      if (e.status !== 404) return false;
    }
    await new Promise((done) => setTimeout(done, 100));
  }
  return false;
}

// The new conversation gets its name from the server. It becomes the open one, unless the user has
// left it.
async function begin(running) {
  const title = titleWith(running.question.said, running.files), {root} = fresh;
  const metadata = {...metadataOf(fresh), page: "new", ...(root && {first_of: root})};
  const c = await post("/v1/conversations", {metadata, ...(title && {title})});
  if (root) addTry(root, c.id).catch(() => {}); // without it there are no arrows
  sending.delete("new");
  sending.set(c.id, running);
  if (!open) {
    opened(c);
    keepDraft("new", ""); // the user typed this text for the conversation that has just begun
    keepDraft(c.id, $("text").value);
  }
  return c;
}

function failed(e) {
  if (e.name === "AbortError") return;
  if (e.code === "context_length_exceeded")
    notice(`This conversation is full: its context of ${limit} tokens has no room for this message. ` +
           "Start a new conversation, or branch from an earlier answer.", ...waysOut());
  else notice(e.message);
}

// Sends to the open conversation. files: texts that stand before the message. `input`: the items to
// send if they are more than these.
async function say(text, files = [], input = [{role: "user", content: Files.content(text, files)}]) {
  if (!text || sending.has(openId())) return;
  const running = {question: Talk.message("user", text, null, files), li: Talk.message("assistant", ""), text: "", thought: "",
                   files, control: new AbortController()};
  const s = settings(), isNew = !open;
  let id = openId(), isSent = false;
  sending.set(id, running);
  notice("");
  Talk.add(running.question, running.li);
  keepDraft(id, "");
  for (const e of document.querySelectorAll("#talk .cut button:last-child")) e.click();
  if (touch.matches) $("text").blur();
  busy();
  try {
    if (isNew) id = (await begin(running)).id;
    list().catch(() => {});
    showState();
    await stream(running, await request(id, input, s, running.control.signal));
    isSent = true;
  } catch (e) {
    isSent = running.control.signal.aborted && await stopped(running);
    if (!isSent && (running.text || running.thought || (e.name !== "AbortError" && sessionStorage.getItem("draft:" + id))))
      broken(running, id, e);
    else if (!isSent) {
      unsaid(running, id, text, isNew);
      failed(e);
    }
  }
  sending.delete(id);
  busy();
  list().catch(() => {});
  showState();
  if (isSent && id === openId() && !touch.matches) $("text").focus();
}

// The answer broke off. What was read stays with its question, also over a reload, until the user
// sends something or removes it.
function broken(running, id, e) {
  const why = running.text || running.thought
    ? `${e.message} This is what had arrived. The server may not have kept it.` : e.message;
  running.question.remove();
  running.li.remove();
  keepCut(id, {text: running.question.said, files: running.files, answer: running.text, thought: running.thought,
               response: running.response, why});
  sending.delete(id);
  if (id === openId()) showCut(id, []);
}

// Nothing was kept: the text returns to its conversation's box, and a conversation made for it is
// removed.
function unsaid(running, id, text, isNew) {
  running.question.remove();
  running.li.remove();
  if (isNew && id !== "new") {
    ask("DELETE", "/v1/conversations/" + id).catch(() => {}); // if that fails, list() removes the conversation later
    sending.delete(id);
    if (id === openId()) opened(null);
    id = "new";
  }
  sending.delete(id);
  keepDraft(id, text);
  if (id === openId()) Files.set(running.files);
  if (id === openId() && !$("talk").children.length) Talk.welcome();
}

// --- the server's state and live figures -----------------------------------------------------------------

const bytes = (n) => n >= 1e9 ? (n / 1e9).toFixed(2) + " GB" : n >= 1e6 ? (n / 1e6).toFixed(1) + " MB" : Math.round(n / 1e3) + " kB";

function pairs(rows) {
  const dl = make("dl");
  for (const [k, v] of rows) dl.append(make("dt", "", k), make("dd", "", v));
  return dl;
}

function tier(t) {
  const isCopies = t.copies_written !== undefined; // the tier consists of copies in memory, in front of the disk
  const parts = [make("h2", "", isCopies ? "Copies in memory" : "Store: " + t.name)];
  if (t.chunks === undefined) return parts; // only an administrator's key sees the rest
  if (t.cap_bytes) {
    const m = make("meter");
    m.max = t.cap_bytes;
    m.value = t.used_bytes;
    m.setAttribute("aria-label", `${t.name}: ${bytes(t.used_bytes)} of ${bytes(t.cap_bytes)}`);
    parts.push(m);
  }
  if (isCopies) {
    parts.push(pairs([["used", bytes(t.used_bytes) + " of " + bytes(t.cap_bytes)], ["chunks", String(t.chunks)],
                      ["read ahead", `${t.copies_promoted} (${t.promoted_unused} never used)`],
                      ["dropped for room", String(t.demoted)]]));
    return parts;
  }
  const seen = t.chunk_hits + t.chunk_misses;
  parts.push(pairs([["used", bytes(t.used_bytes) + (t.cap_bytes ? " of " + bytes(t.cap_bytes) : "")],
                    ["chunks", String(t.chunks)],
                    ["chunk hits", seen ? Math.round(100 * t.chunk_hits / seen) + " %" : "none yet"],
                    ...(t.corrupt ? [["damaged, not used", String(t.corrupt)]] : [])]));
  return parts;
}

async function stats() {
  const s = await get("/v1/cache/stats"), p = s.prompts, n = p.running || p.open;
  const share = (k) => `${k} (${Math.round(100 * k / Math.max(1, p.device_tokens + p.restored_tokens + p.computed_tokens))} %)`;
  $("stats").replaceChildren(...s.tiers.flatMap(tier), make("h2", "", "Prompt tokens since the server's start"),
    pairs([["still in memory", share(p.device_tokens)], ["restored", share(p.restored_tokens)],
           ...(p.dram_tokens ? [["of these from memory", share(p.dram_tokens)]] : []),
           ["computed", share(p.computed_tokens)], ["restores", String(p.restores)]]));
  return n;
}

// Shows the newest requests of all clients of this key, with what was found of each and why not more.
async function requests() {
  const box = $("requests-list");
  if (!$("requests").open) return;
  const all = (await get("/v1/requests?limit=50")).data;
  box.replaceChildren(...all.map((q) => {
    const r = q.restoration, li = make("li"), share = r.prompt_tokens ? Math.floor(100 * r.cached_tokens / r.prompt_tokens) : 0;
    const b = button(`${share} % of ${r.prompt_tokens} tokens found`, "open", () => attempt(async () => {
      const shown = li.querySelector(".restoration, .line");
      if (shown) return shown.remove();
      const told = (await get("/v1/requests/" + q.id)).restoration;
      li.append(Lanes.figure(told, Math.max(300, li.clientWidth - 24)) || make("p", "line", Lanes.summary(told)));
    }));
    b.append(make("span", "when", `${when(q.created_at)}, ${(q.agent || "no name").slice(0, 40)}`));
    li.append(b);
    if (r.miss) li.append(make("p", "mark", r.miss));
    return li;
  }));
  if (!all.length) box.append(make("li", "mark", "None since the server's start."));
}

// Returns the server's state by /health: "ok", "loading" or "stopping"; "away": it does not answer.
async function health() {
  try {
    return (await (await fetch("/health", {cache: "no-store"})).json()).status;
  } catch {
    return "away";
  }
}

const STATES = {ok: "ready", loading: "loading the model", stopping: "shutting down", away: "not reachable"};
let state = "ok", hasStarted = false;

// Shows the last known state, with live figures if there are any. Returns how many answers run.
async function showState() {
  const seen = state, isLive = seen === "ok" && hasStarted && !document.hidden;
  const n = isLive ? await stats().catch(() => 0) : 0;
  if (state !== seen) return 0; // the state has changed meanwhile, and the new one is shown
  if (seen !== "ok") $("stats").replaceChildren(); // old figures are not the server's state
  $("alive").textContent = n ? plural(n, "answer") + " running" : STATES[seen] || seen;
  $("alive").className = seen === "ok" ? "" : "bad";
  return n;
}

async function live() {
  const now = document.hidden ? state : await health(), isBack = now === "ok" && state !== "ok";
  state = now;
  if (now === "ok" && (isBack || (!hasStarted && $("key").hidden))) await attempt(hasStarted ? list : start);
  const n = await showState();
  setTimeout(live, now === "ok" && !n ? 2000 : 500);
}

// --- start ----------------------------------------------------------------------------------------------

// Shows the model; of several, a list to pick from. The context of one that was never loaded is not known.
async function models() {
  const all = (await get("/v1/models")).data, names = all.map((m) => m.id);
  let pick = $("pick");
  if (!pick && all[0].state) { // a server of several models
    pick = make("select");
    pick.id = "pick";
    pick.setAttribute("aria-label", "Model");
    pick.append(...names.map((n) => make("option", "", n)));
    pick.onchange = () => attempt(models);
    $("model").replaceChildren(pick);
  } else if (!pick) {
    $("model").textContent = names[0];
  }
  const model = pick ? all[names.indexOf(pick.value)] : all[0];
  limit = model.max_model_len || 0;
  keptIn = model.conversations;
}

async function start() {
  const id = location.hash.slice(1);
  await models();
  $("key").hidden = true;
  hasStarted = true;
  await list();
  try {
    await show(id || null);
  } catch (e) {
    await show(null);
    throw e.status === 404 ? new Fault(404, "That conversation does not exist. It may have been deleted.") : e;
  }
}

const send = () => {
  const text = $("text").value.trim();
  if (text && !sending.has(openId())) say(text, Files.take());
};
const stop = () => {
  const running = sending.get(openId());
  if (running) running.control.abort();
  busy();
};

$("compose").onsubmit = (e) => { e.preventDefault(); send(); };
$("text").onkeydown = (e) => {
  if (e.key !== "Enter" || e.isComposing) return;
  if (e.ctrlKey || e.metaKey || (!e.shiftKey && !touch.matches)) {
    e.preventDefault();
    send();
  }
};
$("text").oninput = () => keepDraft(openId(), $("text").value);
$("stop").onclick = stop;
$("new").onclick = () => attempt(async () => { await show(null); $("text").focus(); });
$("more").onclick = () => attempt(() => list(oldest));
$("menu").onclick = () => $("menu").setAttribute("aria-expanded", String($("side").classList.toggle("shown")));
$("query").oninput = () => attempt(() => list());
$("rename").onclick = rename;
$("export").onclick = () => attempt(async () => Files.save(open, await items(open.id)));
$("import").onclick = () => $("import-file").click();
$("import-file").onchange = () => attempt(async () => {
  const id = await Files.load($("import-file"));
  if (id) await show(id);
  await list();
});
$("attach").onclick = () => $("attach-file").click();
$("attach-file").onchange = () => attempt(() => Files.attach($("attach-file")));
$("requests").ontoggle = () => attempt(requests);
$("set").onclick = askSettings;
$("name-no").onclick = () => $("naming").close();
$("settings-no").onclick = () => $("settings").close();
$("key").onsubmit = (e) => {
  e.preventDefault();
  sessionStorage.setItem("key", $("key-text").value);
  $("key-text").value = "";
  attempt(start);
};
document.onkeydown = (e) => {
  if (e.key === "Escape" && !document.querySelector("dialog[open]")) stop();
};
window.onhashchange = () => attempt(() => show(location.hash.slice(1) || null));
// A touch screen has no Enter and Shift keys, and a narrow window no room for the hint.
if (touch.matches || matchMedia("(max-width: 46rem)").matches) $("text").placeholder = "Message";
Talk.watch();
live().then(() => touch.matches || $("text").focus());
