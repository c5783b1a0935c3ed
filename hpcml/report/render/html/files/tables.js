// Tables: sorted by their headings; no column is ever out of sight. A table that is too wide is cut into several below
// each other, each with the first column; on a phone each row becomes a card.

const CARDS_REM = 34; // below this width
const LONG = 24; // characters of a cell with a line of a card for itself; this and the next as page.py has them
const LAID_OUT = 500; // rows at once: more take seconds
const compared = new Intl.Collator(undefined, { numeric: true });

// ---- rows ----------------------------------------------------------------------------------------------------------
// The rows of a table are kept in the order in which they are sorted. Those of a long one are values, and become
// elements where they are laid out; those of a short one are the elements of the page.

const keptRows = new WeakMap(); // by table: its rows, those that are chosen, how many of them are laid out

function rowsOf(table) {
  if (!keptRows.has(table)) {
    const values = barOf(table)?.querySelector("script");
    const rows = values ? fromValues(JSON.parse(values.textContent)) : [...table.tBodies[0].rows].map((row) => ({ row }));
    keptRows.set(table, { rows, chosen: rows, most: LAID_OUT });
  }
  return keptRows.get(table);
}

function barOf(table) {
  let next = table.closest(".scroll").nextElementSibling;
  while (next?.classList.contains("further")) next = next.nextElementSibling;
  return next?.classList.contains("rows") ? next : null;
}

function fromValues(columns) {
  const length = Math.max(...columns.map((column) => (column.at ?? column.cells).length));
  return Array.from({ length }, (_, place) => ({ cells: columns.map((column) => column.cells[column.at === null ? place : column.at[place]]) }));
}

const textOf = (each, at) => (each.cells ? (typeof each.cells[at] === "string" ? each.cells[at] : each.cells[at][0]) : each.row.cells[at].textContent);

// A number that is written as it is sorted has no order besides.
function orderOf(each, at, isNumber) {
  const text = textOf(each, at);
  const order = each.cells ? (typeof each.cells[at] === "string" ? undefined : each.cells[at][1] ?? undefined) : each.row.cells[at].dataset.order;
  const value = Number(order === undefined && isNumber && text !== "" ? text : order);
  return Number.isNaN(value) ? null : value;
}

function elementOf(table, each) {
  if (each.row) return each.row;
  const headings = table.tHead.rows[0].cells;
  const row = document.createElement("tr");
  for (const [at, cell] of each.cells.entries()) {
    const element = row.appendChild(document.createElement(at === 0 ? "th" : "td"));
    if (at === 0) element.scope = "row";
    const [text, , tone] = typeof cell === "string" ? [cell, null, "plain"] : cell;
    element.textContent = text;
    if (tone !== "plain") element.classList.add(tone);
    if (headings[at].classList.contains("number")) element.classList.add("number");
    if (text.length > LONG) element.classList.add("long");
  }
  return row;
}

function layOut(table) {
  const { rows, chosen, most } = rowsOf(table);
  table.tBodies[0].replaceChildren(...chosen.slice(0, most).map((each) => elementOf(table, each)));
  delete table.dataset.labelled;
  const bar = barOf(table);
  if (bar === null) return;
  const laidOut = Math.min(most, chosen.length);
  const found = chosen.length === rows.length ? `${rows.length} rows` : `${chosen.length} of ${rows.length} rows match`;
  bar.querySelector("p").textContent = laidOut < chosen.length ? `${found}; the first ${laidOut} are shown.` : `${found}.`;
  for (const button of bar.querySelectorAll("button")) button.hidden = laidOut === chosen.length;
}

function sort(table, at) {
  const headings = table.tHead.rows[0].cells;
  const direction = headings[at].getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
  for (const other of headings) other.setAttribute("aria-sort", "none");
  headings[at].setAttribute("aria-sort", direction);
  const sign = direction === "ascending" ? 1 : -1;
  const isNumber = headings[at].classList.contains("number");
  const of = rowsOf(table);
  const keyed = of.rows.map((each) => ({ each, order: orderOf(each, at, isNumber), text: textOf(each, at) }));
  keyed.sort((a, b) => {
    if (!a.text || !b.text) return (a.text ? 0 : 1) - (b.text ? 0 : 1); // what is not known stays below
    if (a.order !== null && b.order !== null) return sign * (a.order - b.order);
    return sign * compared.compare(a.text, b.text);
  });
  of.rows = keyed.map(({ each }) => each);
  choose(table, of.text ?? "");
}

// The same words as beside a chart: phrases apart by commas, here of the columns with their headings: "seed 1, failed".
function choose(table, text) {
  const of = rowsOf(table);
  const phrases = phrasesOf(text);
  const names = [...table.tHead.rows[0].cells].map((heading) => heading.textContent.trim());
  const said = (each) => (each.said ??= names.map((name, at) => `${name} ${textOf(each, at)}`).join(" ").toLowerCase().replaceAll(",", ""));
  of.text = text;
  of.chosen = phrases.length === 0 ? of.rows : of.rows.filter((each) => phrases.some((phrase) => phrase.test(said(each))));
  layOut(table);
}

function findRows(region) {
  const table = region.querySelector("table");
  const bar = barOf(table);
  if (bar === null) return;
  const input = document.createElement("input");
  input.type = "search";
  input.placeholder = "all; or: seed 0, failed";
  input.autocomplete = "off";
  input.addEventListener("input", () => { choose(table, input.value); fit(region); });
  const label = document.createElement("label");
  label.append("Rows ", input);
  const more = (text, count) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.addEventListener("click", () => { rowsOf(table).most += count; layOut(table); fit(region); });
    return button;
  };
  bar.prepend(label);
  if (bar.dataset.rows > LAID_OUT) bar.append(more(`Show ${LAID_OUT} more`, LAID_OUT), more("Show all", Infinity));
  layOut(table);
}

// ---- width ---------------------------------------------------------------------------------------------------------

function whole(region) {
  region.classList.remove("cards", "breaks", "narrow");
  while (region.nextElementSibling?.classList.contains("further")) region.nextElementSibling.remove();
  for (const cell of region.querySelectorAll("[hidden]")) cell.hidden = false;
  for (const cell of region.querySelectorAll(".whole, .broken")) cell.classList.remove("whole", "broken");
}

function asCards(region, table) {
  const names = [...table.tHead.rows[0].cells].map((heading) => heading.innerText.trim());
  region.classList.add("cards");
  if (table.dataset.labelled) return;
  table.dataset.labelled = "1";
  for (const row of table.tBodies[0].rows) {
    for (const [at, cell] of [...row.cells].entries()) cell.dataset.label = names[at];
  }
}

// Which columns stand beside each other where the first one is in every part: as few parts as fit, of like widths.
function parts(widths, room) {
  const inParts = (limit) => {
    const found = [];
    let taken = Infinity;
    widths.slice(1).forEach((width, at) => {
      if (taken + width > limit) { found.push([]); taken = widths[0]; }
      found.at(-1).push(at + 1);
      taken += width;
    });
    return found;
  };
  let best = inParts(room);
  for (let limit = room; limit > widths[0]; limit -= room / 40) {
    const tried = inParts(limit);
    if (tried.length > best.length) break;
    best = tried;
  }
  return best;
}

function cut(region, table) {
  const widths = [...table.tHead.rows[0].cells].map((heading) => heading.offsetWidth);
  const found = parts(widths, region.clientWidth);
  let last = region;
  for (const columns of found.slice(1)) {
    const further = document.createElement("div");
    further.className = `${region.className} further`;
    const copy = table.cloneNode(false);
    copy.setAttribute("aria-label", `${table.caption.innerText}, further columns`);
    const picked = (row) => {
      const line = row.cloneNode(false);
      line.append(...[0, ...columns].map((at) => row.cells[at].cloneNode(true)));
      return line;
    };
    const head = copy.createTHead();
    head.append(picked(table.tHead.rows[0]));
    [...head.rows[0].cells].forEach((heading, at) => {
      heading.dataset.at = [0, ...columns][at];
      heading.querySelector("button")?.addEventListener("click", () => pressed(region, [0, ...columns][at]));
    });
    copy.createTBody().append(...[...table.tBodies[0].rows].map(picked));
    further.append(copy);
    last.after(further);
    last = further;
  }
  const kept = new Set([0, ...found[0]]);
  for (const row of table.rows) {
    for (const [at, cell] of [...row.cells].entries()) cell.hidden = !kept.has(at);
  }
}

// A word that is wider than its column may be makes room for itself; it is neither broken nor written over the next one.
// Only a word that would leave no room for other columns is broken.
function makeRoom(table) {
  const room = table.closest(".scroll").clientWidth / 2;
  for (const cell of [...table.querySelectorAll("th, td")].filter((each) => each.scrollWidth > each.clientWidth)) {
    cell.classList.add(cell.scrollWidth > room ? "broken" : "whole");
  }
}

function fit(region) {
  const table = region.querySelector("table");
  whole(region);
  const isPaper = root.classList.contains("paper");
  const rem = parseFloat(getComputedStyle(root).fontSize);
  const isTooWide = () => table.offsetWidth > region.clientWidth;
  makeRoom(table);
  if (isTooWide()) {
    region.classList.add("narrow");
    makeRoom(table);
  }
  if (isTooWide()) {
    if (!isPaper && region.clientWidth < CARDS_REM * rem) asCards(region, table);
    else if (table.tHead.rows[0].cells.length > 2) cut(region, table);
  }
  for (const each of [region, ...further(region)]) {
    if (each.scrollWidth > each.clientWidth) each.classList.add("breaks");
    // only what can be scrolled is a stop for the keyboard
    if (each.scrollWidth > each.clientWidth || each.scrollHeight > each.clientHeight) each.tabIndex = 0;
    else each.removeAttribute("tabindex");
  }
}

function* further(region) {
  for (let next = region.nextElementSibling; next?.classList.contains("further"); next = next.nextElementSibling) yield next;
}

// The part in which the heading stands is made anew: whoever pressed it with a key stays on it.
function pressed(region, at) {
  const had = document.activeElement?.closest(".scroll");
  const place = had === null ? -1 : [region, ...further(region)].indexOf(had);
  sort(region.querySelector("table"), at);
  fit(region);
  [region, ...further(region)][place]?.querySelector(`th[data-at="${at}"] button`)?.focus();
}

const regions = (scope = document) => scope.querySelectorAll(".scroll:not(.further)");

function findTables(scope = document) {
  for (const region of regions(scope)) {
    region.querySelectorAll("th[aria-sort]").forEach((heading, at) => {
      heading.dataset.at = at;
      heading.querySelector("button").addEventListener("click", () => pressed(region, at));
    });
    findRows(region);
    const details = region.closest("details");
    if (details === null) fit(region);
    else details.addEventListener("toggle", () => details.open && fit(region));
  }
}

let width = window.innerWidth;
window.addEventListener("resize", () => {
  if (window.innerWidth === width) return;
  width = window.innerWidth;
  fitAll();
});

function fitAll() {
  for (const region of regions()) if (!region.closest("details:not([open])")) fit(region);
}
