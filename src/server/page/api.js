// api.js - requests to the server, and the functions that make elements.
"use strict";

const $ = (id) => document.getElementById(id);

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

const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;

// An error answer of the server; status 0: there was no answer.
class Fault extends Error {
  constructor(status, message, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

async function ask(method, path, body, signal) {
  const headers = {}, key = sessionStorage.getItem("key");
  if (key) headers.Authorization = "Bearer " + key;
  const isFile = body instanceof Blob;
  if (body !== undefined) headers["Content-Type"] = isFile ? "application/pdf" : "application/json";
  let answer, error = {};
  try {
    answer = await fetch(path, {method, headers, signal, body: isFile ? body : body && JSON.stringify(body)});
  } catch (e) {
    if (e.name === "AbortError") throw e;
    throw new Fault(0, "The server does not answer. " + (keptIn === "file" ? "Your conversations are saved. " : "") + "Try again when it is back.");
  }
  if (answer.ok) return answer;
  try { error = (await answer.json()).error; } catch { /* no JSON: only the status is known */ }
  if (answer.status === 401) $("key").hidden = false;
  throw new Fault(answer.status, error.message || "HTTP status " + answer.status, error.code);
}
const get = async (path) => (await ask("GET", path)).json();
const post = async (path, body) => (await ask("POST", path, body)).json();

// The events of a stream, as objects.
async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    rest += value;
    for (let end; (end = rest.indexOf("\n\n")) >= 0; rest = rest.slice(end + 2)) {
      const lines = rest.slice(0, end).split("\n").filter((l) => l.startsWith("data:"));
      const data = lines.map((l) => l.slice(5).trim()).join("\n");
      if (data && data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

// The clipboard's own interface exists on encrypted pages and on this machine only.
async function copy(text, b) {
  const old = b.textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const box = make("textarea", "unseen");
    box.value = text;
    document.body.append(box);
    box.select();
    document.execCommand("copy");
    box.remove();
  }
  b.textContent = "Copied";
  setTimeout(() => { b.textContent = old; }, 1500);
}
