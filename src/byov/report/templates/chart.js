"use strict";
// Small SVG charts: points, lines, intervals and ranges; hover, tap or use arrow keys for values, drag to zoom.
// The shade of a series runs from its model's full colour at 0 to a pale tint at 1.
const shaded = (series) => (series.shade === undefined ? null : `--c: color-mix(in srgb, var(--c${series.colour % 6}) ${Math.round(100 - 65 * series.shade)}%, var(--card))`);
const SVG = "http://www.w3.org/2000/svg";

function make(name, attributes = {}, parent = null, text = null) {
  const inside = ["svg", "g", "path", "line", "circle", "rect", "text", "title", "clipPath", "defs"].includes(name);
  const node = inside ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value !== null) node.setAttribute(key, value);
  if (text !== null) node.textContent = text;
  if (parent) parent.append(node);
  return node;
}

function number(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const text = size >= 1e5 || size < 1e-4 ? value.toExponential(2) : String(Number(value.toPrecision(digits)));
  return text.replace("-", "−");
}

// Round axis steps; powers of ten on a logarithmic axis.
function ticks(low, high, wanted, log) {
  const decades = log ? Math.log10(high / low) : 0;
  if (decades > 0.7) {
    const found = [];
    const marks = decades > 3 ? [1] : decades > 1.2 ? [1, 3] : [1, 2, 3, 5, 7];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++)
      for (const mark of marks) {
        const value = mark * 10 ** power;
        if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
      }
    const step = Math.ceil(found.length / (wanted + 1));
    return found.filter((_, i) => i % step === 0);
  }
  const span = high - low || 1;
  const raw = span / wanted;
  const base = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * base).find((s) => s >= raw);
  const found = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-6; value += step)
    found.push(Math.abs(value) < step * 1e-6 ? 0 : value);
  return found;
}

function scale(low, high, from, to, log) {
  const f = log ? Math.log : (v) => v;
  const a = f(low), b = f(high);
  const map = (value) => from + ((f(value) - a) / (b - a || 1)) * (to - from);
  map.invert = (place) => {
    const value = a + ((place - from) / (to - from)) * (b - a);
    return log ? Math.exp(value) : value;
  };
  return map;
}

function extent(values, log, pad = 0.06) {
  const known = values.filter((v) => Number.isFinite(v) && (!log || v > 0));
  if (!known.length) return log ? [0.1, 1] : [0, 1];
  let low = Math.min(...known), high = Math.max(...known);
  if (log) {
    const margin = Math.max((high / low) ** pad, 1.005);
    return [low / margin, high * margin];
  }
  const margin = (high - low || Math.abs(high) || 1) * pad;
  return [low - margin, high + margin];
}

const tip = {
  node: null,
  show(lines, x, y) {
    if (!this.node) this.node = make("div", { class: "tip", role: "status", "aria-live": "polite" });
    const open = document.querySelector("dialog[open]");
    if (this.node.parentNode !== (open || document.body)) (open || document.body).append(this.node);
    this.node.replaceChildren();
    lines.forEach((line, i) => make(i ? "span" : "strong", {}, this.node, line));
    this.node.hidden = false;
    const box = this.node.getBoundingClientRect();
    const left = Math.min(Math.max(8, x + 14), window.innerWidth - box.width - 8);
    const top = y - box.height - 14 < 8 ? y + 18 : y - box.height - 14;
    this.node.style.left = `${left}px`;
    this.node.style.top = `${top}px`;
  },
  hide() { if (this.node) this.node.hidden = true; },
};

// A chart is redrawn whenever its width, its zoom or its visible series change.
// spec: {title, describe, x, y, series, height}; an axis: {label, log, domain, format, categories};
// a series: {label, colour, dashed, line, band, points: [{x, y, low, high, left, right, inner, r, faint, tip: [lines]}]}:
// low to high is a vertical whisker, or a strip with band; left to right is a horizontal whisker; lines skip faint points.
class Chart {
  constructor(host, spec) {
    this.host = host;
    this.spec = spec;
    this.hidden = new Set();
    this.zoom = null;
    this.at = null;
    host.replaceChildren();
    host.classList.add("chart");
    this.bar = make("div", { class: "chart-bar" }, host);
    const meant = Object.keys(DATA.glossary).filter((word) => spec.title.split(/[^\w@-]+/).includes(word));
    make("span", { class: "chart-title", "data-tip": meant.length ? meant.flatMap((word) => [word, DATA.glossary[word]]).join("\n") : null }, this.bar, spec.title);
    this.reset = make("button", { type: "button", class: "quiet", hidden: "" }, this.bar, "Reset zoom");
    this.reset.addEventListener("click", () => this.zoomTo(null));
    exporters(this);
    if (!spec.large) {
      const label = `Enlarge: ${spec.title}`;
      const enlarge = make("button", { type: "button", class: "quiet enlarge", "aria-label": label, title: "Enlarge" }, this.bar, "⤢");
      enlarge.addEventListener("click", () => enlarged(this.spec));
    }
    this.area = make("div", { class: "chart-area" }, host);
    this.legend();
    this.width = 0;
    new ResizeObserver(() => {
      if (Math.abs(this.area.clientWidth - this.width) > 1) this.draw();
    }).observe(this.area);
    this.draw();
  }

  // One legend entry per name, so the seeds of a model are toggled together.
  legend() {
    const names = new Map();
    this.spec.series.forEach((series, i) => names.set(series.label, [...(names.get(series.label) || []), i]));
    if (names.size < 2) return;
    const list = make("div", { class: "legend", role: "group", "aria-label": "Series" }, this.host);
    for (const [name, members] of names) {
      const { colour, dashed } = this.spec.series[members[0]];
      const button = make("button", { type: "button", "aria-pressed": "true", class: `key c${colour % 6}`, style: shaded(this.spec.series[members[0]]) }, list);
      make("i", { class: dashed ? "dash" : "" }, button);
      button.append(name);
      button.addEventListener("click", () => {
        const hide = !this.hidden.has(members[0]);
        for (const i of members) if (hide) this.hidden.add(i); else this.hidden.delete(i);
        button.setAttribute("aria-pressed", String(!hide));
        this.draw();
      });
    }
  }

  zoomTo(zoom) {
    this.zoom = zoom;
    this.reset.hidden = zoom === null;
    this.draw();
  }

  draw() {
    const { spec } = this;
    const width = (this.width = Math.max(this.area.clientWidth, 200));
    const rows = spec.y.categories;
    const tall = rows ? rows.length * (spec.row || (spec.large ? 24 : 19)) + 60 : spec.large ? Math.min(window.innerHeight * 0.66, width * 0.7) : Math.min(Math.max(width * 0.62, 220), 340);
    const height = spec.square ? Math.min(width, spec.large ? window.innerHeight * 0.7 : 380) : tall;
    const longest = rows ? Math.max(...rows.map((name) => name.length)) : 0;
    const shown = spec.series.filter((_, i) => !this.hidden.has(i));
    const points = shown.flatMap((series) => series.points);
    const [x0, x1] = this.zoom ? this.zoom.x : spec.x.domain || extent(points.flatMap((p) => [p.x, p.left, p.right]), spec.x.log, 0.03);
    const [y0, y1] = rows ? [rows.length - 0.4, -0.6] : this.zoom ? this.zoom.y : spec.y.domain || extent(points.flatMap((p) => [p.y, p.low, p.high]), spec.y.log);
    const marks = rows ? [] : ticks(y0, y1, 5, spec.y.log);
    const widest = Math.max(0, ...marks.map((value) => (spec.y.format || number)(value).length));
    const left = rows ? Math.min(longest * 6.3 + 14, width * 0.46) : 32 + widest * 6.4;
    const box = { left, right: width - 14, top: 12, bottom: height - 42 };
    const x = scale(x0, x1, box.left, box.right, spec.x.log), y = scale(y0, y1, box.bottom, box.top, spec.y.log);
    const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, width, height, tabindex: "0", role: "img", "aria-label": `${spec.title}. ${spec.describe} Use arrow keys to read the values.` });
    const clip = `clip-${Math.random().toString(36).slice(2)}`;
    make("rect", { x: box.left - 6, y: box.top - 6, width: box.right - box.left + 12, height: box.bottom - box.top + 12 }, make("clipPath", { id: clip }, make("defs", {}, svg)));
    this.axes(svg, box, x, y, [x0, x1], marks);
    const layer = make("g", { "clip-path": `url(#${clip})` }, svg);
    if (spec.diagonal) make("line", { class: "diagonal", x1: x(Math.max(x0, y0)), y1: y(Math.max(x0, y0)), x2: x(Math.min(x1, y1)), y2: y(Math.min(x1, y1)) }, layer);
    if (spec.zero) make("line", { class: "zero", x1: x(0), x2: x(0), y1: box.top, y2: box.bottom }, layer);
    for (const rule of spec.rules || []) {
      make("line", { class: `rule c${rule.colour % 6}`, x1: box.left, x2: box.right, y1: y(rule.y), y2: y(rule.y) }, layer);
    }
    this.dots = [];
    shown.forEach((series, k) => {
      const group = make("g", { class: `series c${series.colour % 6}${series.dashed ? " dashed" : ""}`, style: shaded(series) }, layer);
      const nudge = rows && shown.length > 1 ? (k - (shown.length - 1) / 2) * 6 : 0;
      const known = series.points.filter((p) => Number.isFinite(p.x) && Number.isFinite(p.y) && (!spec.x.log || p.x > 0) && (!spec.y.log || p.y > 0));
      const path = (each) => each.map(([a, b], i) => `${i ? "L" : "M"}${a.toFixed(1)} ${b.toFixed(1)}`).join("");
      if (series.band) make("path", { class: "strip", d: path([...known.map((p) => [x(p.x), y(p.high)]), ...known.slice().reverse().map((p) => [x(p.x), y(p.low)])]) }, group);
      if (series.line !== false) make("path", { class: "line", d: path(known.filter((p) => !p.faint).map((p) => [x(p.x), y(p.y)])) }, group);
      for (const p of known) {
        const px = x(p.x), py = y(p.y) + nudge;
        if (!series.band && !p.faint && Number.isFinite(p.low) && Number.isFinite(p.high)) make("line", { class: "whisker", x1: px, x2: px, y1: y(p.low), y2: y(p.high) }, group);
        if (Number.isFinite(p.left) && Number.isFinite(p.right)) make("line", { class: "whisker", x1: x(p.left), x2: x(p.right), y1: py, y2: py }, group);
        if (p.inner) make("line", { class: "inner", x1: x(p.inner[0]), x2: x(p.inner[1]), y1: py, y2: py }, group);
        if (p.r !== 0) make("circle", { class: `dot${p.faint ? " faint" : ""}`, cx: px.toFixed(1), cy: py.toFixed(1), r: p.r || 3.2 }, group);
        this.dots.push({ px, py, k, lines: [series.label, ...p.tip], inside: px >= box.left - 8 && px <= box.right + 8 && py >= box.top - 8 && py <= box.bottom + 8 });
      }
    });
    this.ring = make("circle", { class: "ring", r: 7, visibility: "hidden" }, svg);
    this.listen(svg, box, x, y, Boolean(rows));
    this.area.replaceChildren(svg);
    this.svg = svg;
  }

  axes(svg, box, x, y, xs, marks) {
    const { spec } = this;
    const axis = make("g", { class: "axis" }, svg);
    const wantedX = Math.max(3, Math.floor((box.right - box.left) / 70));
    for (const value of spec.x.ticks || ticks(...xs, wantedX, spec.x.log)) {
      make("line", { class: "grid", x1: x(value), x2: x(value), y1: box.top, y2: box.bottom }, axis);
      make("text", { x: x(value), y: box.bottom + 17, "text-anchor": "middle" }, axis, (spec.x.format || number)(value));
    }
    if (spec.y.categories) {
      const most = Math.floor((box.left - 12) / 6.1);
      spec.y.categories.forEach((name, i) => {
        const short = name.length > most ? `…${name.slice(name.length - most + 1)}` : name;
        make("text", { x: box.left - 10, y: y(i) + 4, "text-anchor": "end", class: "name" }, axis, short);
        make("line", { class: "grid", x1: box.left, x2: box.right, y1: y(i), y2: y(i) }, axis);
      });
    } else {
      for (const value of marks) {
        make("line", { class: "grid", x1: box.left, x2: box.right, y1: y(value), y2: y(value) }, axis);
        make("text", { x: box.left - 8, y: y(value) + 4, "text-anchor": "end" }, axis, (spec.y.format || number)(value));
      }
      make("text", { class: "label", transform: `translate(12 ${(box.top + box.bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, axis, spec.y.label);
    }
    make("text", { class: "label", x: (box.left + box.right) / 2, y: box.bottom + 36, "text-anchor": "middle" }, axis, spec.x.label);
  }

  point(dot, announce = true) {
    this.at = dot;
    this.ring.setAttribute("cx", dot.px);
    this.ring.setAttribute("cy", dot.py);
    this.ring.setAttribute("visibility", "visible");
    const place = this.svg.getBoundingClientRect();
    if (announce) tip.show(dot.lines, place.left + dot.px, place.top + dot.py);
  }

  leave() {
    this.at = null;
    this.ring.setAttribute("visibility", "hidden");
    tip.hide();
  }

  listen(svg, box, x, y, fixed) {
    let start = null, brush = null;
    const place = (event) => {
      const at = svg.getBoundingClientRect();
      return [event.clientX - at.left, event.clientY - at.top];
    };
    const hover = (event) => {
      const [px, py] = place(event);
      let best = null, least = event.pointerType === "mouse" ? 46 : 70;
      for (const dot of this.dots) {
        const far = dot.inside ? Math.hypot(dot.px - px, dot.py - py) : Infinity;
        if (far < least) [best, least] = [dot, far];
      }
      if (best) this.point(best);
      else this.leave();
    };
    svg.addEventListener("pointerdown", (event) => {
      if (event.pointerType !== "mouse" || event.button !== 0 || fixed) return hover(event);
      start = place(event);
      svg.setPointerCapture(event.pointerId);
    });
    svg.addEventListener("pointermove", (event) => {
      if (!start) return hover(event);
      const [px, py] = place(event);
      if (!brush && Math.hypot(px - start[0], py - start[1]) < 6) return;
      tip.hide();
      brush = brush || make("rect", { class: "brush" }, svg);
      for (const [key, value] of Object.entries({ x: Math.min(px, start[0]), y: Math.min(py, start[1]), width: Math.abs(px - start[0]), height: Math.abs(py - start[1]) })) brush.setAttribute(key, value);
    });
    svg.addEventListener("pointerup", (event) => {
      const from = start;
      start = null;
      if (!brush || !from) return;
      brush = null;
      const [px, py] = place(event);
      if (Math.abs(px - from[0]) < 8 || Math.abs(py - from[1]) < 8) return this.draw();
      const cut = (a, b, low, high) => [Math.min(Math.max(Math.min(a, b), low), high), Math.min(Math.max(Math.max(a, b), low), high)];
      const [left, right] = cut(px, from[0], box.left, box.right), [top, bottom] = cut(py, from[1], box.top, box.bottom);
      this.zoomTo({ x: [x.invert(left), x.invert(right)], y: [y.invert(bottom), y.invert(top)] });
    });
    svg.addEventListener("dblclick", () => this.zoomTo(null));
    svg.addEventListener("pointerleave", () => { if (!start) this.leave(); });
    svg.addEventListener("blur", () => this.leave());
    svg.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1 };
    if (event.key === "Escape") {
      if (this.at) { event.preventDefault(); this.leave(); } else if (this.zoom) this.zoomTo(null);
      return;
    }
    if (!(event.key in steps) || !this.dots.length) return;
    event.preventDefault();
    if (!this.at) return this.point(this.dots[0]);
    const across = event.key === "ArrowRight" || event.key === "ArrowLeft";
    const along = this.dots.filter((dot) => dot.k === this.at.k);
    if (across || this.spec.y.categories) {
      const next = along[along.indexOf(this.at) + steps[event.key]];
      if (next) this.point(next);
      return;
    }
    const series = [...new Set(this.dots.map((dot) => dot.k))];
    const other = series[(series.indexOf(this.at.k) + steps[event.key] + series.length) % series.length];
    const near = this.dots.filter((dot) => dot.k === other).sort((a, b) => Math.abs(a.px - this.at.px) - Math.abs(b.px - this.at.px));
    if (near.length) this.point(near[0]);
  }
}

// The same chart, enlarged to the whole window.
function enlarged(spec) {
  const dialog = document.getElementById("zoom");
  const body = dialog.querySelector(".zoom-body");
  body.replaceChildren();
  dialog.showModal();
  return new Chart(make("div", {}, body), { ...spec, large: true });
}
