// lanes.js - the picture of a restoration: the source of each part of the prompt, and when each lane worked.
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

  const runsOf = (r) => [["predicted", r.predicted], ["measured", r.measured]].filter(([, t]) => t && t.spans.length);

  const percent = (t, which) => Math.round(100 * busy(t.spans, which, t.ms)) + " %";
  // Returns the drawn lanes in words.
  const told = (r) => runsOf(r).map(([name, t]) => `${name} ${ms(t.ms)} (I/O ${percent(t, "io")} busy, compute ${percent(t, "compute")})`).join(", ");

  function draw(r, WIDTH) {
    const runs = runsOf(r);
    if (!runs.length) return null;
    const longest = Math.max(...runs.map(([, t]) => t.ms), 1e-6);
    const scale = (WIDTH - LEFT - RIGHT) / longest;
    const height = runs.length * 2 * (LANE + GAP) + (runs.length - 1) * GAP + 18;
    const svg = shape("svg", {width: WIDTH, viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": "Restoration: " + told(r)});
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

  // Names of the sources of a prompt's parts, for text and picture.
  const SOURCES = {device: "still in memory", dram: "restored from the DRAM tier", disk: "restored from disk",
                   "dram+disk": "restored from the DRAM tier and from disk", computed: "computed"};
  const KINDS = {device: "device", dram: "dram", disk: "restored", "dram+disk": "restored", computed: "computed"};
  const kindOf = (part) => KINDS[part.source];

  // Returns the time of a restoration. Text and picture use the same one.
  const restoreMs = (r) => (r.measured ? r.measured.ms : r.timings.restore_ms);
  const predictedMs = (r) => (r.predicted ? r.predicted.ms : r.plan.predicted_ms);

  // Draws one bar with the source of each part of the prompt.
  function prefix(r, WIDTH) {
    const scale = (WIDTH - LEFT - RIGHT) / Math.max(1, r.prompt_tokens);
    const told = r.prefix.map((p) => `tokens ${p.from} to ${p.to} ${SOURCES[p.source]}`).join("; ");
    const svg = shape("svg", {width: WIDTH, viewBox: `0 0 ${WIDTH} ${LANE}`, role: "img", "aria-label": told}, label(0, 13, "prompt"));
    for (const p of r.prefix) {
      const width = (p.to - p.from) * scale;
      svg.append(titled(shape("rect", {class: kindOf(p), x: LEFT + p.from * scale, y: 0, width, height: LANE}),
                        `tokens ${p.from} to ${p.to}: ${SOURCES[p.source]}`));
      if (width > 40)
        svg.append(label(LEFT + (p.from + p.to) / 2 * scale, 13, String(p.to - p.from),
                         {class: "in", "text-anchor": "middle", "pointer-events": "none"}));
    }
    svg.append(label(LEFT + r.prompt_tokens * scale + 5, 13, String(r.prompt_tokens)));
    return svg;
  }

  function legend(entries) {
    const ul = make("ul", "legend");
    for (const [name, text] of entries) {
      const li = make("li");
      li.append(make("i", name), name.length === 1 ? `${name} ${text}` : text);
      ul.append(li);
    }
    return ul;
  }

  function summary(r) {
    const restored = r.prefix.filter((p) => p.source !== "device" && p.source !== "computed").pop();
    const parts = r.prefix.map((p) => `${p.to - p.from} ${SOURCES[p.source]}` +
                                      (p === restored ? ` in ${ms(restoreMs(r))}` : ""));
    const n = r.generated_tokens, s = r.timings.decode_ms / 1000;
    const speed = n > 1 && s > 0 ? ` at ${((n - 1) / s).toFixed((n - 1) / s < 100 ? 1 : 0)} tokens/s` : "";
    return `Prompt tokens: ${parts.join(", ")}. Answer: ${plural(n, "token")}${speed}.`;
  }

  // `width`: available pixels; text keeps its size on a phone.
  function figure(r, width) {
    const inner = Math.max(280, width - 26), box = make("div", "restoration"), svg = draw(r, inner), t = r.timings;
    const add = (text) => box.append(make("p", "", text));
    box.append(prefix(r, inner), legend(r.prefix.map((p) => [kindOf(p), `${p.to - p.from} ${SOURCES[p.source]}`])));
    if (svg) {
      const kinds = Object.entries(METHODS).filter(([k]) => r.plan && r.plan.layers.includes(k));
      box.append(svg, legend([...kinds, ["idle", "idle"]]));
    }
    if (r.plan && r.plan.layers) {
      // The reason's shares of busy time are left out: they include the new tokens, which are not drawn.
      const reason = r.plan.reason.replace(/; I\/O \d+ %, compute \d+ % busy/, "");
      add(`Plan ${r.plan.layers}: ${reason}. ` + (svg ? `The restoration: ${told(r)}.` : `Predicted ${ms(predictedMs(r))}, measured ${ms(restoreMs(r))}.`));
    }
    if (r.miss === "not stored") add("The computed tokens are new: no saved state has them.");
    else if (r.miss) add(`Not everything was restored: ${r.miss}.`);
    add(`First token after ${ms(t.ttft_ms)}: queue ${ms(t.queue_ms)}, look-up ${ms(t.lookup_ms)}, ` +
        (r.plan ? `restore ${ms(restoreMs(r))}, ` : "") + `prefill ${ms(t.prefill_ms)}. Answer: ${ms(t.decode_ms)}.`);
    return box;
  }

  return {figure, summary, busy};
})();
