"use strict";
document.documentElement.classList.add("js");

const infinite = text => text.replace("−", "-").replace("∞", "Infinity ");
const numeric = text => { const n = parseFloat(infinite(text)); return Number.isNaN(n) ? text : n; };
const order = (a, b) => typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? 1 : -1; // Text, such as an unknown bound, sorts below every number.

const turned = goal => goal === "largest" || goal === "steepness";

/* The verdict of a row at a radius or score, by the same rules as holdfast.report.verdict. */
function verdict(row, at, goal) {
  if (row.dataset.f) return "broken";
  let proved = numeric(row.dataset.l), shown = numeric(row.dataset.u);
  if (turned(goal)) [proved, shown, at] = [-shown, -proved, -at];
  if (goal === "worst" || goal === "largest") return proved > at ? "certified" : shown <= at ? "broken" : "unknown";
  return proved >= at ? "certified" : shown < at ? "broken" : "unknown";
}

class Paged {
  constructor(table) {
    this.table = table;
    this.body = table.tBodies[0];
    this.rows = [...this.body.rows];
    this.texts = new Map();
    this.first = 0;
    this.tools = [...document.querySelectorAll(`.tools[data-for=${table.id}]`)];
    for (const tool of this.tools) {
      tool.addEventListener("input", () => this.filter());
      tool.querySelector("[data-back]")?.addEventListener("click", () => this.turn(-1));
      tool.querySelector("[data-on]")?.addEventListener("click", () => this.turn(1));
    }
    const heads = [...table.tHead.rows[0].cells].map(head => head.textContent.trim());
    for (const row of this.rows) for (let column = 1; column < row.cells.length; column++) row.cells[column].dataset.h = heads[column];
    [...table.tHead.rows[0].cells].forEach((head, column) =>
      head.querySelector("button")?.addEventListener("click", () => this.sort(head, column)));
    this.filter();
  }
  wish(name) {
    for (const tool of this.tools) {
      const field = tool.querySelector(`[data-wish=${name}]`);
      if (field) return field.value;
    }
    return "";
  }
  get size() { return parseInt(this.wish("size"), 10) || Infinity; }
  text(row) {
    if (!this.texts.has(row)) this.texts.set(row, row.textContent.toLowerCase());
    return this.texts.get(row);
  }
  sort(head, column) {
    const rising = head.getAttribute("aria-sort") !== "ascending", key = head.dataset.key;
    for (const other of this.table.tHead.rows[0].cells) if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", rising ? "ascending" : "descending");
    const keyed = this.rows.map(row => [numeric(key ? row.dataset[key] : row.cells[column].textContent.trim()), row]);
    keyed.sort((a, b) => (rising ? 1 : -1) * order(a[0], b[0]));
    this.rows = keyed.map(pair => pair[1]);
    this.body.append(...this.rows);
    this.filter();
  }
  filter() {
    const words = this.wish("words").trim().toLowerCase(), status = this.wish("status"), kind = this.wish("kind");
    const at = parseFloat(this.wish("at")), goal = this.table.dataset.goal;
    const kept = row => (!status || row.dataset.s === status) && (!words || this.text(row).includes(words))
      && (!kind || (kind === "wrong" ? "w" in row.dataset : verdict(row, at, goal) === kind));
    this.kept = this.rows.filter(row => { row.hidden = !kept(row); return !row.hidden; });
    this.first = 0;
    this.draw();
  }
  turn(step) { this.first += step * this.size; this.draw(); }
  showPageOf(row) {
    const place = this.kept.indexOf(row);
    if (place >= 0) { this.first = this.size === Infinity ? 0 : place - place % this.size; this.draw(); }
  }
  draw() {
    const last = Math.min(this.kept.length, this.first + this.size);
    for (const row of this.body.querySelectorAll(".on")) row.classList.remove("on");
    for (const row of this.kept.slice(this.first, last)) row.classList.add("on");
    for (const tool of this.tools) {
      const back = tool.querySelector("[data-back]"), on = tool.querySelector("[data-on]"), shown = tool.querySelector("output");
      if (back) back.disabled = this.first === 0;
      if (on) on.disabled = last >= this.kept.length;
      if (shown) shown.textContent = this.kept.length ? `${this.first + 1} to ${last} of ${this.kept.length}` +
        (this.kept.length < this.rows.length ? `, chosen from ${this.rows.length}` : "") : `none of ${this.rows.length}`;
    }
  }
}

/* A dialog with one input, built from its row of the table; opened by #i17. */
class Detail {
  constructor(dialog, tables) {
    this.dialog = dialog;
    this.tables = tables;
    dialog.querySelector("[data-close]").addEventListener("click", () => dialog.close());
    dialog.querySelector("[data-back]").addEventListener("click", () => this.step(-1));
    dialog.querySelector("[data-on]").addEventListener("click", () => this.step(1));
    dialog.addEventListener("close", () => this.closed());
    addEventListener("hashchange", () => this.follow());
    this.follow();
  }
  follow() {
    const row = location.hash.startsWith("#i") ? document.getElementById(location.hash.slice(1)) : null;
    const paged = row && this.tables.find(one => one.body === row.parentNode);
    if (paged) this.open(row, paged);
    else if (this.dialog.open) this.dialog.close();
  }
  step(by) {
    const next = this.paged.kept[this.paged.kept.indexOf(this.row) + by];
    if (next) location.hash = next.id;
  }
  closed() {
    if (location.hash.startsWith("#i")) history.replaceState(null, "", location.pathname + location.search);
    this.row?.querySelector("a")?.focus();
  }
  open(row, paged) {
    this.row = row;
    this.paged = paged;
    const ends = paged.rows.flatMap(one => [numeric(one.dataset.l), numeric(one.dataset.u)]).filter(Number.isFinite);
    this.low = ends.reduce((a, b) => Math.min(a, b), 0);
    this.high = ends.reduce((a, b) => Math.max(a, b), 0);
    if (this.high === this.low) this.high = this.low + 1;
    this.heads = [...paged.table.tHead.rows[0].cells].map(cell => cell.textContent.trim());
    this.paged.showPageOf(row);
    const place = this.paged.kept.indexOf(row);
    this.dialog.querySelector("[data-back]").disabled = place <= 0;
    this.dialog.querySelector("[data-on]").disabled = place < 0 || place + 1 >= this.paged.kept.length;
    this.dialog.querySelector("h2").textContent = `Input ${row.cells[0].innerText.trim().replace("\n", ", ")}`;
    this.dialog.querySelector("[data-content]").replaceChildren(this.pictures(row), this.answers(row), this.paged.table.hasAttribute("data-bounds") ? this.bar(row) : "", this.facts(row), this.frames(row));
    if (!this.dialog.open) this.dialog.showModal();
  }
  pictures(row) {
    const box = element("div", "three");
    for (const column of [1, 2, 3]) {
      if (!row.cells[column].hasChildNodes()) continue;
      const figure = element("figure"), caption = element("figcaption");
      caption.textContent = this.heads[column];
      figure.append(caption, ...[...row.cells[column].childNodes].map(node => node.cloneNode(true)));
      box.append(figure);
    }
    if (row.dataset.p) {
      const figure = element("figure"), map = element("img");
      map.src = `data:image/png;base64,${row.dataset.p}`;
      map.alt = `saliency: ${row.dataset.q}`;
      figure.append(element("figcaption", "", "saliency"), map, element("p", "hint", row.dataset.q));
      box.append(figure);
    }
    return box;
  }
  /* The most likely classes before and after, from data-a: class, percent, output; before; after. */
  answers(row) {
    const found = this.paged.table.tHead.rows[0].cells[2].textContent;
    const box = element("div", "two"), names = JSON.parse(this.paged.table.dataset.names || "{}");
    for (const [place, side] of (row.dataset.a || "").split(";").entries()) {
      if (!side) continue;
      const figure = element("figure"), table = element("table", "likely"), head = table.createTHead().insertRow();
      for (const [name, style] of [["class"], ["share", "n"], ["output", "n"]]) {
        const cell = element("th", style, name);
        cell.scope = "col";
        head.append(cell);
      }
      const body = table.createTBody();
      for (const [label, percent, output] of side.split(",").map(one => one.split(" "))) {
        const line = body.insertRow(), name = element("th", "", names[label] ?? label), bar = element("i");
        name.scope = "row";
        bar.style.width = `${parseFloat(percent.replace(/[<>]/, "")) || 0}%`;
        name.append(bar);
        line.append(name, element("td", "n", `${percent} %`), element("td", "n", output));
      }
      table.setAttribute("aria-label", `most likely classes at the ${place ? found : "input"}`);
      figure.append(element("figcaption", "", `prediction at the ${place ? found : "input"}`), table);
      box.append(figure);
    }
    return box;
  }
  bar(row) {
    const bar = element("div", "bar"), span = (this.high - this.low) * 1.08, rises = !turned(this.paged.table.dataset.goal);
    const at = value => Math.max(0, Math.min(100, 100 * (value - this.low) / span));
    const low = at(numeric(row.dataset.l)), high = at(numeric(row.dataset.u));
    for (const [name, from, to] of [[rises ? "held" : "lost", 0, low], ["maybe", low, high], [rises ? "lost" : "held", high, 100]]) {
      const part = element("i", name);
      part.style.left = `${from}%`;
      part.style.width = `${to - from}%`;
      bar.append(part);
    }
    bar.setAttribute("role", "img");
    bar.setAttribute("aria-label", rises ? `proved to hold up to ${row.dataset.l}, shown to break beyond ${row.dataset.u}, unknown between`
      : `shown to reach ${row.dataset.l}, proved never to pass ${row.dataset.u}, unknown between`);
    return bar;
  }
  facts(row) {
    const list = element("dl");
    for (let column = 4; column < row.cells.length; column++) {
      const text = row.cells[column].innerText.trim().replace(/\n+/g, "; ");
      if (!text) continue;
      const name = element("dt"), value = element("dd");
      name.textContent = this.heads[column];
      value.textContent = text;
      const source = row.cells[column].querySelector("small")?.textContent;
      const tags = source && document.querySelector(`#methods tr[data-m="${CSS.escape(source)}"] [data-t]`)?.textContent;
      if (tags) value.append(element("br"), Object.assign(element("span", "hint"), { textContent: tags }));
      list.append(name, value);
    }
    return list;
  }
  frames(row) {
    const cells = [...row.cells[1].querySelectorAll("[title]")], box = element("div");
    if (!cells.length) return box;
    const list = element("ul"), head = element("h3");
    const thing = row.cells[1].querySelector(".words") ? "word" : cells[0].title.split(" ")[0];
    head.textContent = `${thing[0].toUpperCase()}${thing.slice(1)} by ${thing}`;
    for (const cell of cells) list.append(Object.assign(element("li"), { textContent: `${cell.textContent} ${cell.title}`.trim() }));
    box.append(head, list);
    return box;
  }
}

function element(name, style, text) {
  const made = document.createElement(name);
  if (style) made.className = style;
  if (text) made.textContent = text;
  return made;
}

/* Open the folded sections around the target of a link, and all of them before printing. */
const unfold = node => { for (let at = node; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true; };
const unfoldTarget = () => unfold(location.hash.length > 1 ? document.getElementById(decodeURIComponent(location.hash.slice(1))) : null);
addEventListener("hashchange", unfoldTarget);
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach(one => { one.open = true; }));

document.addEventListener("DOMContentLoaded", () => {
  unfoldTarget();
  const tables = [...document.querySelectorAll("table[data-paged]")].map(table => new Paged(table));
  const dialog = document.querySelector("dialog");
  if (dialog && tables.length) new Detail(dialog, tables);
});
