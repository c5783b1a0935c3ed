// Tables: sorted by their headings; no column is ever out of sight. A table that is too wide is cut into several below
// each other, each with the first column; on a phone each row becomes a card.

const CARDS_REM = 34; // below this width
const MANY_ROWS = 500; // as report.css has it
const compared = new Intl.Collator(undefined, { numeric: true });

function sort(table, at) {
  const headings = table.tHead.rows[0].cells;
  const direction = headings[at].getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
  for (const other of headings) other.setAttribute("aria-sort", "none");
  headings[at].setAttribute("aria-sort", direction);
  const sign = direction === "ascending" ? 1 : -1;
  const body = table.tBodies[0];
  const keyed = [...body.rows].map((row) => {
    const cell = row.cells[at];
    const order = cell.dataset.order;
    const isNumber = order === undefined && cell.classList.contains("number") && cell.textContent !== "";
    const value = Number(isNumber ? cell.textContent : order); // a number that is written as it is sorted has no order
    return { row, order: Number.isNaN(value) ? null : value, text: cell.textContent };
  });
  keyed.sort((a, b) => {
    if (!a.text || !b.text) return (a.text ? 0 : 1) - (b.text ? 0 : 1); // what is not known stays below
    if (a.order !== null && b.order !== null) return sign * (a.order - b.order);
    return sign * compared.compare(a.text, b.text);
  });
  body.append(...keyed.map((each) => each.row));
}

function whole(region) {
  region.classList.remove("cards", "breaks", "narrow");
  while (region.nextElementSibling?.classList.contains("further")) region.nextElementSibling.remove();
  for (const cell of region.querySelectorAll("[hidden]")) cell.hidden = false;
  for (const cell of region.querySelectorAll(".whole")) cell.classList.remove("whole");
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
function makeRoom(table) {
  const cells = [...table.querySelectorAll(table.classList.contains("brief") ? "thead th, tbody tr:nth-child(-n + 500) > *" : "th, td")];
  for (const cell of cells.filter((each) => each.scrollWidth > each.clientWidth)) cell.classList.add("whole");
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

// Of a long table the first rows are laid out, and the others when they are asked for: it takes seconds.
function shorten(region) {
  const table = region.querySelector("table");
  const rows = table.tBodies[0].rows.length;
  if (rows <= MANY_ROWS) return;
  table.classList.add("brief");
  const button = document.createElement("button");
  button.type = "button";
  button.className = "all";
  button.textContent = `Show all ${rows} rows`;
  button.addEventListener("click", () => showAll(region));
  region.append(button);
}

function showAll(region) {
  region.querySelector("table").classList.remove("brief");
  region.querySelector("button.all")?.remove();
  fit(region);
}

const regions = (scope = document) => scope.querySelectorAll(".scroll:not(.further)");

function findTables(scope = document) {
  for (const region of regions(scope)) {
    region.querySelectorAll("th[aria-sort]").forEach((heading, at) => {
      heading.dataset.at = at;
      heading.querySelector("button").addEventListener("click", () => pressed(region, at));
    });
    shorten(region);
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
