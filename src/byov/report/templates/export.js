"use strict";
// Save a chart as an image with title and legend, or as numbers; save a table as its cells.
const PAINT = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "opacity", "font-size", "font-family", "text-anchor", "visibility"];

function exporters(chart) {
  const box = make("span", { class: "export", role: "group", "aria-label": "Save" }, chart.bar);
  for (const [kind, write] of Object.entries({ SVG: svgFile, PNG: pngFile, CSV: csvFile })) {
    const button = make("button", { type: "button", class: "quiet", "aria-label": `Save as ${kind}: ${chart.spec.title}` }, box, kind);
    button.addEventListener("click", () => write(chart, (blob) => save(blob, `${chart.spec.title}.${kind.toLowerCase()}`)));
  }
}

function save(blob, name) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name.replace(/[^\w.@-]+/g, "_") });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// The style sheet is not exported, so every element gets its computed style.
function standalone(chart) {
  const keys = [...chart.host.querySelectorAll(".key[aria-pressed=true]")];
  const width = chart.width, inner = Number(chart.svg.getAttribute("height")), height = inner + 34 + 18 * keys.length;
  const css = getComputedStyle(document.body), font = { "font-family": "sans-serif", fill: css.color };
  const outer = make("svg", { xmlns: SVG, width, height, viewBox: `0 0 ${width} ${height}` });
  make("rect", { width, height, fill: getComputedStyle(chart.host).backgroundColor }, outer);
  make("text", { x: 10, y: 20, "font-size": 14, "font-weight": 600, ...font }, outer, chart.spec.title);
  const copy = chart.svg.cloneNode(true), from = [chart.svg, ...chart.svg.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((node, i) => {
    const look = getComputedStyle(from[i]);
    for (const name of PAINT) node.style.setProperty(name, look.getPropertyValue(name));
  });
  copy.setAttribute("y", 28);
  outer.append(copy);
  keys.forEach((key, i) => {
    const y = inner + 40 + 18 * i, mark = key.querySelector("i");
    make("line", { x1: 12, x2: 34, y1: y, y2: y, stroke: getComputedStyle(mark).borderTopColor, "stroke-width": 3, "stroke-dasharray": mark.className ? "5 4" : null }, outer);
    make("text", { x: 42, y: y + 4, "font-size": 12, ...font }, outer, key.textContent);
  });
  return { text: new XMLSerializer().serializeToString(outer), width, height };
}

function svgFile(chart, done) {
  done(new Blob([standalone(chart).text], { type: "image/svg+xml" }));
}

function pngFile(chart, done) {
  const { text, width, height } = standalone(chart), image = new Image(), canvas = make("canvas", { width: 2 * width, height: 2 * height });
  image.addEventListener("load", () => {
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob(done, "image/png");
  });
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
}

const quoted = (cell) => (/[",\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);
const csv = (rows) => new Blob([`${rows.map((row) => row.map((cell) => quoted(String(cell ?? ""))).join(",")).join("\n")}\n`], { type: "text/csv" });

function csvFile(chart, done) {
  const { x, y, series } = chart.spec, names = y.categories;
  const rows = series.flatMap((each) => each.points.map((p) => [each.label, p.x, names ? names[p.y] : p.y, p.left ?? p.low, p.right ?? p.high]));
  done(csv([["series", x.label, y.label || "name", "low", "high"], ...rows]));
}

function tableFile(table) {
  const button = make("button", { type: "button", class: "quiet table-file", "aria-label": "Save this table as CSV" }, null, "CSV");
  const text = (cell) => { const copy = cell.cloneNode(true); copy.querySelectorAll("small").forEach((each) => each.prepend(" ")); return copy.textContent.trim(); };
  button.addEventListener("click", () => save(csv([...table.rows].map((row) => [...row.cells].flatMap((cell) => [text(cell), ...Array(cell.colSpan - 1).fill("")]))), `${table.id || table.closest("section").id}.csv`));
  table.parentNode.after(button);
}
