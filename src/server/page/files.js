// files.js - the page reads and writes files here: attached texts, and whole conversations.
//
// An attached file is a part of the message, in front of what the user typed: a text that begins with its name. The
// server reads the text of a PDF.
"use strict";

const Files = (() => {
  const MAX_BYTES = 1 << 20, MAX_PDF_BYTES = 16 << 20, ITEMS_A_REQUEST = 20; // the API takes 20 items at once
  let attached = []; // texts of the files that the next message takes along

  const part = (name, content) => `File "${name}":\n${content}`;

  // Returns name and content of a part that is a file; null: it is none.
  function read(text) {
    const m = /^File "([^"\n]{1,200})":\n/.exec(text);
    return m && {name: m[1], content: text.slice(m[0].length)};
  }

  // Returns a message's content in the API's form.
  function content(text, files) {
    return [...(files || []), text].map((t) => ({type: "input_text", text: t}));
  }

  function draw() {
    $("files").replaceChildren(...attached.map((text) => {
      const li = make("li"), name = read(text).name;
      li.append(make("span", "", name), button("Remove", "quiet", () => set(attached.filter((t) => t !== text)), "Remove " + name));
      return li;
    }));
  }

  function set(files) {
    attached = files;
    draw();
  }

  function take() {
    const files = attached;
    set([]);
    return files;
  }

  // Returns a file's text. A file that is no text is refused by its name.
  async function textOf(file) {
    if (/\.pdf$/i.test(file.name)) {
      if (file.size > MAX_PDF_BYTES) throw new Fault(0, `${file.name} is too large: a PDF can have at most 16 MiB.`);
      try {
        return (await post("/pdf-text", file)).text;
      } catch (e) {
        throw e instanceof Fault ? new Fault(e.status, `${file.name}: ${e.message}`) : e;
      }
    }
    if (file.size > MAX_BYTES) throw new Fault(0, `${file.name} is too large: at most 1 MiB can be attached.`);
    try {
      const text = new TextDecoder("utf-8", {fatal: true}).decode(await file.arrayBuffer());
      if (!text.includes("\0")) return text;
    } catch { /* no UTF-8 */ }
    throw new Fault(0, `${file.name} is not a text in UTF-8, so the model cannot read it.`);
  }

  async function attach(input) {
    const chosen = [...input.files], texts = [];
    input.value = ""; // so that the same file can be chosen again
    for (const f of chosen) texts.push(part(f.name.replace(/["\n]/g, "_"), await textOf(f)));
    set([...attached, ...texts]);
    $("text").focus();
  }

  // --- whole conversations ---

  // Has the browser save a conversation: its title, its metadata, and its items in the API's form.
  function save(conversation, items) {
    const {title, metadata} = conversation;
    const kept = items.map(({id, response_id, status, ...item}) => item);
    const text = JSON.stringify({format: "hcache conversation 1", title, metadata, items: kept}, null, 1);
    const a = make("a");
    a.href = URL.createObjectURL(new Blob([text], {type: "application/json"}));
    a.download = (title || "conversation").replace(/[^\p{L}\p{N} _-]/gu, "").slice(0, 60).trim() + ".json";
    a.click();
    setTimeout(() => URL.revokeObjectURL(a.href), 1000);
  }

  // Makes a conversation from an exported file. Returns its id, or null if no file was chosen.
  async function load(input) {
    const file = input.files[0];
    let o = null;
    if (!file) return null;
    input.value = "";
    try { o = JSON.parse(await file.text()); } catch { /* said below */ }
    if (!o || o.format !== "hcache conversation 1" || !Array.isArray(o.items))
      throw new Fault(0, `${file.name} is not a conversation that this page has exported.`);
    const metadata = Object.fromEntries(Object.entries(o.metadata || {}).filter(([k]) => k !== "page"));
    const c = await post("/v1/conversations", {title: o.title || file.name.slice(0, 80), metadata});
    try {
      for (let i = 0; i < o.items.length; i += ITEMS_A_REQUEST)
        await post(`/v1/conversations/${c.id}/items`, {items: o.items.slice(i, i + ITEMS_A_REQUEST)});
    } catch (e) { // a half of a conversation is none
      await ask("DELETE", "/v1/conversations/" + c.id).catch(() => {});
      throw e;
    }
    return c.id;
  }

  return {read, content, set, take, clear: () => set([]), attach, save, load};
})();
