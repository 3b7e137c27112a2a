// lanes.js - the picture of a restoration: where the prefix came from, and who worked when.
"use strict";

const METHODS = {R: "recomputed", H: "from hidden states", K: "keys and values read"};

const Lanes = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const LEFT = 120, RIGHT = 48, LANE = 18, GAP = 5;

  function shape(name, attributes, ...children) {
    const e = document.createElementNS(SVG, name);
    for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
    e.append(...children);
    return e;
  }
  function label(x, y, text, more = {}) {
    return shape("text", {x, y, ...more}, text);
  }
  function titled(e, text) {
    e.append(shape("title", {}, text));
    return e;
  }
  const ms = (x) => (x < 10 ? x.toFixed(2) : x.toFixed(x < 100 ? 1 : 0)) + " ms";

  // The share of a lane's time that its spans cover; spans may touch, and I/O spans may overlap.
  function busy(spans, lane, total) {
    let covered = 0, end = 0;
    const own = spans.filter((s) => s.lane === lane).sort((a, b) => a.start_ms - b.start_ms);
    for (const s of own) {
      covered += Math.max(0, s.end_ms - Math.max(s.start_ms, end));
      end = Math.max(end, s.end_ms);
    }
    return total > 0 ? Math.min(1, covered / total) : 0;
  }

  function lane(y, title, spans, which, total, scale) {
    const g = shape("g", {}, label(0, y + 13, title),
                    shape("rect", {class: "lane", x: LEFT, y, width: total * scale, height: LANE}));
    for (const s of spans.filter((x) => x.lane === which)) {
      const x = LEFT + s.start_ms * scale, width = Math.max(1, (s.end_ms - s.start_ms) * scale - 0.5);
      g.append(titled(shape("rect", {class: s.method, x, y, width, height: LANE}),
                      `layer ${s.layer}, ${METHODS[s.method] || s.method}: ${ms(s.start_ms)} to ${ms(s.end_ms)}`));
      if (width > 18)
        g.append(label(x + width / 2, y + 13, s.method + s.layer, {class: "in", "text-anchor": "middle",
                                                                  "pointer-events": "none"}));
    }
    g.append(label(LEFT + total * scale + 5, y + 13, Math.round(100 * busy(spans, which, total)) + " %"));
    return g;
  }

  function draw(r, WIDTH) {
    const runs = [["predicted", r.predicted], ["measured", r.measured]].filter(([, t]) => t && t.spans.length);
    if (!runs.length) return null;
    const longest = Math.max(...runs.map(([, t]) => t.ms), 1e-6);
    const scale = (WIDTH - LEFT - RIGHT) / longest;
    const said = runs.map(([name, t]) => `${name} ${ms(t.ms)}, I/O busy ${Math.round(100 * busy(t.spans, "io", t.ms))} %, ` +
                                         `compute ${Math.round(100 * busy(t.spans, "compute", t.ms))} %`).join("; ");
    const height = runs.length * 2 * (LANE + GAP) + (runs.length - 1) * GAP + 18;
    const svg = shape("svg", {width: WIDTH, viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": "Restoration: " + said});
    let y = 0;
    for (const [name, t] of runs) {
      svg.append(lane(y, `I/O, ${name}`, t.spans, "io", t.ms, scale));
      y += LANE + GAP;
      svg.append(lane(y, `compute, ${name}`, t.spans, "compute", t.ms, scale));
      y += LANE + 2 * GAP;
    }
    svg.append(label(LEFT, height - 4, "0"), label(LEFT + longest * scale, height - 4, ms(longest), {"text-anchor": "end"}));
    return svg;
  }

  // Where each part of the prompt came from, as one bar.
  function prefix(r, WIDTH) {
    const scale = (WIDTH - LEFT - RIGHT) / Math.max(1, r.prompt_tokens);
    const svg = shape("svg", {width: WIDTH, viewBox: `0 0 ${WIDTH} ${LANE}`, role: "img",
                              "aria-label": r.prefix.map((p) => `tokens ${p.from} to ${p.to}: ${p.source}`).join("; ")},
                      label(0, 13, "prompt"));
    for (const p of r.prefix) {
      const kind = p.source === "computed" ? "computed" : "restored", width = (p.to - p.from) * scale;
      svg.append(titled(shape("rect", {class: kind, x: LEFT + p.from * scale, y: 0, width, height: LANE}),
                        `tokens ${p.from} to ${p.to}: ${p.source}`));
      if (width > 70)
        svg.append(label(LEFT + (p.from + p.to) / 2 * scale, 13, `${p.to - p.from} ${p.source}`,
                         {class: "in", "text-anchor": "middle", "pointer-events": "none"}));
    }
    svg.append(label(LEFT + r.prompt_tokens * scale + 5, 13, String(r.prompt_tokens)));
    return svg;
  }

  function legend(r) {
    const ul = document.createElement("ul");
    ul.className = "legend";
    const kinds = Object.entries(METHODS).filter(([k]) => r.plan && r.plan.layers.includes(k));
    for (const [name, text] of [...kinds, ["idle", "idle (bubble)"]]) {
      const li = document.createElement("li"), box = document.createElement("i");
      box.className = name;
      li.append(box, name.length === 1 ? `${name} ${text}` : text);
      ul.append(li);
    }
    return ul;
  }

  function summary(r) {
    if (!r.cached_tokens) return `${r.prompt_tokens} tokens computed`;
    const from = r.prefix.filter((p) => p.source !== "computed").map((p) => p.source).join(", ");
    return `${r.cached_tokens} of ${r.prompt_tokens} tokens restored from ${from}` +
           (r.measured ? ` in ${ms(r.measured.ms)}` : r.timings.restore_ms ? ` in ${ms(r.timings.restore_ms)}` : "");
  }

  function paragraph(text) {
    const p = document.createElement("p");
    p.textContent = text;
    return p;
  }

  // `width`: pixels that there are; text keeps its size on a phone.
  function figure(r, width) {
    const inner = Math.max(280, width - 26);
    const box = document.createElement("div"), svg = draw(r, inner);
    box.className = "restoration";
    box.append(prefix(r, inner));
    if (svg) box.append(svg, legend(r));
    if (r.plan && r.plan.layers)
      box.append(paragraph(`Plan ${r.plan.layers}: ${r.plan.reason}. Predicted ${ms(r.plan.predicted_ms)}` +
                           (r.measured ? `, measured ${ms(r.measured.ms)}.` : ".")));
    if (r.plan && r.plan.deviation)
      box.append(paragraph(`This is not the plan that the server was told to use: ${r.plan.deviation}.`));
    if (r.miss) box.append(paragraph(`Not all was restored: ${r.miss}.`));
    const t = r.timings;
    box.append(paragraph(`First token after ${ms(t.ttft_ms)}: queue ${ms(t.queue_ms)}, look-up ${ms(t.lookup_ms)}, ` +
                         `restore ${ms(t.restore_ms)}, prefill ${ms(t.prefill_ms)}; ` +
                         `${r.generated_tokens} tokens in ${ms(t.decode_ms)}.`));
    return box;
  }

  return {figure, summary, busy};
})();
