// markdown.js - draws Markdown as elements.
//
// It makes elements from a fixed list and puts text into them; it never parses HTML. So an answer cannot add
// elements, attributes or scripts. Links lead to http, https and mailto addresses only. Images are not loaded.
//
// highlight.js marks the words of code; only its marks are taken, as elements that are made here. KaTeX makes
// formulas, as MathML elements, without the commands that would make links or load pictures.
"use strict";

const Markdown = (() => {
  const MAX_INLINE = 10000, MAX_DEPTH = 8; // longer or deeper text is shown unformatted
  const MAX_MARKED = 50000;                // longer code is shown in one colour, and code with
  const LONG_WORD = /\S{1000}/;            // such words: the library's time grows with their length squared

  const FENCE = /^ {0,3}(`{3,}|~{3,}) *([^`\s]*)[^`]*$/;
  const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
  const RULE = /^ {0,3}([-*_])(?: *\1){2,} *$/;
  const QUOTE = /^ {0,3}> ?/;
  const ITEM = /^( *)([-*+]|\d{1,9}[.)]) +(?=\S)/;
  const COLUMNS = /^ *\|?(?: *:?-+:? *\|)+(?: *:?-+:? *)?$/;
  const MATH = /^ {0,3}(?:\$\$|\\\[)/; // begins a formula with lines of its own
  const INLINE = new RegExp([
    /(?<ticks>`+)(?<code>[^]*?[^`])\k<ticks>(?!`)/,
    /\$\$(?<shown>[^$]+)\$\$/,
    /\\\[(?<shown2>[^]+?)\\\]/,
    /\\\((?<math>[^]+?)\\\)/,
    /(?<![\\\w$])\$(?<math2>[^\s$](?:[^$\n]*[^\s$\\])?)\$(?![\w$])/, // "5 $ and 6 $" is none, nor is "$5 and $6"
    /\*\*(?<strong>\S(?:[^]*?\S)??)\*\*/,
    /(?<!\w)__(?<strong2>\S(?:[^]*?\S)??)__(?!\w)/,
    /\*(?<em>[^\s*](?:[^*]*[^\s*])??)\*/,
    /(?<!\w)_(?<em2>[^\s_](?:[^_]*[^\s_])??)_(?!\w)/,
    /~~(?<del>\S(?:[^]*?\S)??)~~/,
    /!?\[(?<label>[^\[\]]+)\]\((?<href>[^\s()]+)\)/,
    /(?<url>https?:\/\/[^\s<>"'`)\]]+[^\s<>"'`)\].,:;!?])/,
  ].map((r) => r.source).join("|"));

  function link(href, label, depth) {
    if (!/^(https?:\/\/|mailto:)/i.test(href)) return null;
    const a = make("a");
    a.href = href;
    a.target = "_blank";
    a.rel = "noopener noreferrer";
    inline(a, label, depth);
    return a;
  }

  function styled(g, depth) {
    if (g.code !== undefined) return make("code", "", g.code.replace(/^ (.*\S.*) $/, "$1"));
    const shown = g.shown ?? g.shown2, math = shown ?? g.math ?? g.math2;
    if (math !== undefined) return formula(math, shown !== undefined);
    if (g.url) return link(g.url, g.url, MAX_DEPTH);
    if (g.href) return link(g.href, g.label, depth);
    const strong = g.strong ?? g.strong2, em = g.em ?? g.em2;
    const e = make(strong !== undefined ? "strong" : em !== undefined ? "em" : "del");
    inline(e, strong ?? em ?? g.del, depth);
    return e;
  }

  function inline(parent, text, depth) {
    if (depth >= MAX_DEPTH || text.length > MAX_INLINE) return parent.append(text);
    for (let m; (m = INLINE.exec(text)); text = text.slice(m.index + m[0].length))
      parent.append(text.slice(0, m.index), styled(m.groups, depth + 1) || m[0]);
    parent.append(text);
  }

  // Returns the formula's element; null: KaTeX cannot read it, so its text is shown.
  function formula(tex, isBlock) {
    const e = make("span", isBlock ? "math shown" : "math");
    try {
      katex.render(tex, e, {displayMode: isBlock, output: "mathml", trust: false, strict: "ignore", maxExpand: 500});
    } catch {
      return null;
    }
    return e;
  }

  // Appends code with its words marked. The library's text consists of marks and of five escaped characters.
  function marked(parent, text, language) {
    if (!hljs.getLanguage(language) || text.length > MAX_MARKED || LONG_WORD.test(text)) return parent.append(text);
    const PIECE = /<span class="([\w -]+)">|(<\/span>)|&(amp|lt|gt|quot|#x27);|([^<&]+)/g;
    const CHARACTERS = {amp: "&", lt: "<", gt: ">", quot: '"', "#x27": "'"};
    let at = parent;
    for (const [, open, close, character, plain] of hljs.highlight(language, text, true).value.matchAll(PIECE)) {
      if (open) at = at.appendChild(make("span", open));
      else if (close) at = at.parentElement;
      else at.append(character ? CHARACTERS[character] : plain);
    }
  }

  function codeBlock(lines, language) {
    const box = make("div", "code"), head = make("div", "code-head"), pre = make("pre"), text = lines.join("\n");
    const b = button("Copy", "quiet", () => copy(text, b), "Copy this code");
    head.append(make("span", "", language), b);
    pre.append(make("code"));
    marked(pre.firstChild, text, language.toLowerCase());
    pre.tabIndex = 0; // a wide block is scrolled by keys
    box.append(head, pre);
    return box;
  }

  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((c) => c.trim());

  function table(lines, depth) {
    const box = make("div", "wide"), t = make("table"), n = cells(lines[1]).length;
    for (const [i, line] of lines.entries()) {
      if (i === 1) continue;
      const row = make("tr");
      for (const text of cells(line).slice(0, n)) {
        const cell = make(i ? "td" : "th");
        inline(cell, text, depth);
        row.append(cell);
      }
      t.append(row);
    }
    box.append(t);
    return box;
  }

  // A list's lines reach to the first line that is neither an item nor indented.
  function list(lines, depth) {
    const first = ITEM.exec(lines[0]), isOrdered = /\d/.test(first[2]), e = make(isOrdered ? "ol" : "ul");
    if (isOrdered) e.start = parseInt(first[2], 10);
    for (let i = 0; i < lines.length;) {
      const own = ITEM.exec(lines[i]), indent = own[0].length, content = [lines[i++].slice(indent)];
      for (let m; i < lines.length && !((m = ITEM.exec(lines[i])) && m[1].length < indent); i++)
        content.push(lines[i].replace(new RegExp(`^ {1,${indent}}`), ""));
      const li = make("li");
      for (const b of blocks(content, depth + 1)) li.append(b.make());
      e.append(li);
    }
    return e;
  }

  function paragraph(lines, depth) {
    const p = make("p");
    inline(p, lines.join("\n"), depth);
    return p;
  }

  function heading(m, depth) {
    const h = make("h" + Math.min(6, m[1].length + 2)); // the page itself has h1 and h2
    inline(h, m[2], depth);
    return h;
  }

  function quote(lines, depth) {
    const q = make("blockquote");
    for (const b of blocks(lines.map((l) => l.replace(QUOTE, "")), depth + 1)) q.append(b.make());
    return q;
  }

  const isTable = (lines, i) => lines[i].includes("|") && i + 1 < lines.length && COLUMNS.test(lines[i + 1]);
  const begins = (lines, i) => [FENCE, HEADING, RULE, QUOTE, ITEM].some((r) => r.test(lines[i])) || isTable(lines, i);
  const isBlank = (line) => !line.trim();

  // Returns the number of lines from `from` on for which goesOn(line, index) is true.
  function span(lines, from, goesOn) {
    let i = from;
    while (i < lines.length && goesOn(lines[i], i)) i++;
    return i - from;
  }

  // Returns the block at lines[i]: the number of its lines, and the function that makes its element.
  function blockAt(lines, i, depth) {
    let m = FENCE.exec(lines[i]);
    if (m) {
      const closing = new RegExp(`^ {0,3}${m[1][0]}{${m[1].length},} *$`);
      const n = span(lines, i + 1, (l) => !closing.test(l));
      return [n + 2, () => codeBlock(lines.slice(i + 1, i + 1 + n), m[2])];
    }
    if ((m = MATH.exec(lines[i]))) { // up to the line that ends with its closing
      const closing = m[0].endsWith("$") ? "$$" : "\\]", ends = (l) => l.trimEnd().endsWith(closing), first = lines[i].slice(m[0].length);
      const n = ends(first) ? 1 : first.includes(closing) ? Infinity : 2 + span(lines, i + 1, (l) => !ends(l));
      if (i + n <= lines.length) {
        const source = lines.slice(i, i + n).join("\n");
        return [n, () => formula(source.slice(m[0].length).trimEnd().slice(0, -2), true) || make("p", "", source)];
      }
    }
    if ((m = HEADING.exec(lines[i]))) return [1, () => heading(m, depth)];
    if (RULE.test(lines[i])) return [1, () => make("hr")];
    if (depth < MAX_DEPTH && QUOTE.test(lines[i])) {
      const n = span(lines, i, (l) => QUOTE.test(l));
      return [n, () => quote(lines.slice(i, i + n), depth)];
    }
    if (depth < MAX_DEPTH && ITEM.test(lines[i])) {
      const n = span(lines, i, (l, k) => ITEM.test(l) || /^ {2,}\S/.test(l) ||
                     (isBlank(l) && k + 1 < lines.length && (ITEM.test(lines[k + 1]) || /^ {2,}\S/.test(lines[k + 1]))));
      return [n, () => list(lines.slice(i, i + n), depth)];
    }
    if (isTable(lines, i)) {
      const n = span(lines, i, (l) => l.includes("|"));
      return [n, () => table(lines.slice(i, i + n), depth)];
    }
    const n = 1 + span(lines, i + 1, (l, k) => !isBlank(l) && !begins(lines, k));
    return [n, () => paragraph(lines.slice(i, i + n), depth)];
  }

  function blocks(lines, depth) {
    const out = [];
    for (let i = 0; i < lines.length;) {
      if (isBlank(lines[i])) { i++; continue; }
      const [n, makeIt] = blockAt(lines, i, depth);
      out.push({source: lines.slice(i, i + n).join("\n"), make: makeIt});
      i += n;
    }
    return out;
  }

  // Makes `box` show the text. Blocks that have not changed stay, so that a selection survives while text arrives.
  function show(box, text) {
    const all = blocks(text.split(/\r?\n/), 0);
    for (const [i, b] of all.entries()) {
      const old = box.children[i];
      if (old && old.source === b.source) continue;
      const e = b.make();
      e.source = b.source;
      if (old) old.replaceWith(e);
      else box.append(e);
    }
    while (box.children.length > all.length) box.lastElementChild.remove();
  }

  return {show};
})();
