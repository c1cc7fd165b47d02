"use strict";
// Sorting, the heat map's controls, images, the theme, and the dialog for enlarged content.
function sortable(table) {
  const heads = [...table.querySelectorAll("thead th[data-sort]")];
  for (const head of heads) {
    head.querySelector("button").addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "descending" : "ascending");
      const column = Number(head.dataset.sort);
      const body = table.tBodies[0];
      const value = (row) => row.cells[column].dataset.v ?? row.cells[column].textContent.trim();
      const known = (text) => text !== "" && text !== "–";
      const rows = [...body.rows].filter((row) => !row.dataset.fixed);
      const fixed = [...body.rows].filter((row) => row.dataset.fixed);
      rows.sort((a, b) => {
        const p = value(a), q = value(b);
        if (!known(p) || !known(q)) return Number(known(q)) - Number(known(p));
        const numbers = Number.isFinite(Number(p)) && Number.isFinite(Number(q));
        const order = numbers ? Number(p) - Number(q) : p.localeCompare(q, "en", { numeric: true });
        return up ? -order : order;
      });
      body.append(...rows, ...fixed);
    });
  }
}

// The heat map's cells show the chosen score at the chosen severity; darker is higher.
function heat() {
  const table = document.getElementById("heat");
  if (!table) return;
  const metric = document.getElementById("heat-metric").value, severity = document.getElementById("heat-severity").value;
  const told = DATA.ood.metrics[metric];
  const cells = [...table.querySelectorAll("td[data-series]")];
  const at = (cell) => {
    const found = ((DATA.ood.values[cell.dataset.series] || {})[metric] || {})[cell.dataset.shift] || {};
    return cell.dataset.shift === "clean" ? found.mean : found[severity];
  };
  const known = cells.map(at).filter(Number.isFinite);
  const low = Math.min(...known), high = Math.max(...known);
  const write = (value) => (!Number.isFinite(value) ? "–" : told.unit === "%" ? (100 * value).toFixed(1) : value.toFixed(3));
  for (const row of table.tBodies[0].rows) {
    const own = [...row.querySelectorAll("td[data-series]")];
    const values = own.map(at).filter(Number.isFinite);
    const best = values.length > 1 ? (told.more ? Math.max : Math.min)(...values) : null;
    for (const cell of own) {
      const value = at(cell);
      cell.textContent = write(value);
      cell.dataset.v = Number.isFinite(value) ? value : "";
      cell.classList.toggle("best", best !== null && write(value) === write(best));
      cell.style.setProperty("--t", Number.isFinite(value) ? ((value - low) / (high - low || 1)).toFixed(3) : "0");
      const level = cell.dataset.shift === "clean" ? "" : severity === "mean" ? ", mean of the severities" : `, severity ${severity}`;
      cell.dataset.tip = [series(cell.dataset.series).label, `${cell.dataset.shift.replaceAll("_", " ")}${level}`, `${told.name} ${told.unit === "%" ? percent(value) : number(value)}`].join("\n");
    }
  }
  document.getElementById("heat-low").textContent = known.length ? write(low) : "";
  document.getElementById("heat-high").textContent = known.length ? write(high) : "";
  document.getElementById("heat-sense").textContent = `${told.name}${told.unit ? `, ${told.unit}` : ""}; ${told.more ? "higher" : "lower"} is better; the best value of each row is bold.`;
  for (const head of table.querySelectorAll("th[aria-sort]")) head.removeAttribute("aria-sort");
}

function tips() {
  const show = (event) => {
    const cell = event.target.closest && event.target.closest("[data-tip]");
    if (!cell) return;
    const box = cell.getBoundingClientRect();
    tip.show(cell.dataset.tip.split("\n"), box.left + box.width / 2 - 14, box.top);
  };
  for (const kind of ["pointerover", "focusin", "click"]) document.addEventListener(kind, show);
  for (const kind of ["pointerout", "focusout"]) document.addEventListener(kind, (event) => { if (event.target.closest && event.target.closest("[data-tip]")) tip.hide(); });
  window.addEventListener("scroll", () => tip.hide(), { passive: true });
}

function picture(button) {
  const dialog = document.getElementById("zoom");
  const figure = make("figure", { class: "picture" });
  const image = button.querySelector("img").cloneNode();
  image.classList.toggle("wide", button.classList.contains("drawn"));
  figure.append(image);
  const caption = make("figcaption", {}, figure);
  button.dataset.about.split("\n").forEach((line, i) => make(i ? "span" : "strong", {}, caption, line));
  dialog.querySelector(".zoom-body").replaceChildren(figure);
  dialog.showModal();
}

function theme() {
  const button = document.getElementById("theme");
  const root = document.documentElement;
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : window.matchMedia("(prefers-color-scheme: dark)").matches);
  const name = () => { button.setAttribute("aria-label", dark() ? "Light colours" : "Dark colours"); };
  try { const kept = localStorage.getItem("byov-theme"); if (kept) root.dataset.theme = kept; } catch { /* local files may have no storage */ }
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    try { localStorage.setItem("byov-theme", root.dataset.theme); } catch { /* as above */ }
    name();
  });
  name();
}

theme();
tips();
document.querySelectorAll("table.sortable").forEach((table) => { sortable(table); tableFile(table); });
for (const id of ["heat-metric", "heat-severity"]) document.getElementById(id)?.addEventListener("change", () => { heat(); drawFigures(document.getElementById("ood")); });
heat();
drawFigures();
for (const button of document.querySelectorAll("button[data-measure]"))
  button.addEventListener("click", () => {
    for (const other of button.parentNode.querySelectorAll("button")) other.setAttribute("aria-pressed", String(other === button));
    drawFigures(button.closest("section"));
  });
for (const button of document.querySelectorAll("button[data-about]")) button.addEventListener("click", () => picture(button));
const zoom = document.getElementById("zoom");
zoom.addEventListener("click", (event) => { if (event.target === zoom || event.target.closest(".close")) zoom.close(); });
zoom.addEventListener("close", () => tip.hide());
