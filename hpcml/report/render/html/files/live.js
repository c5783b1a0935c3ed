// A page that follows its runs: it asks its server for the page as it is now, and takes over the sections that changed.
// What the reader chose stays: axes, zoom, hidden levels, smoothing, the order of tables, what is unfolded, the focus.

const main = document.getElementById("content");
const following = document.querySelector(".following");
const headingOf = (part) => part.querySelector("h2").textContent;
const known = new Map([...main.querySelectorAll(":scope > div")].map((part) => [part, part.innerHTML])); // as they came
const period = 1000 * Number(root.dataset.period);
const PATIENCE = 4; // periods, before a silent server is called one that has ended

function say(text) {
  if (following.textContent !== text) following.textContent = text;
}

// The things in *part* that can be told from each other by name, each with the same one of an earlier page.
function* pairs(part, old, selector, nameOf) {
  const before = [...old.querySelectorAll(selector)];
  for (const each of part.querySelectorAll(selector)) {
    const at = before.findIndex((one) => nameOf(one) === nameOf(each));
    if (at >= 0) yield [each, before.splice(at, 1)[0]];
  }
}

const captionOf = (region) => region.querySelector("caption").textContent.replace(/\d+/g, "");

function keepOrder(region, old) {
  const at = [...old.querySelector("table").tHead.rows[0].cells].findIndex((heading) => /ending/.test(heading.getAttribute("aria-sort") ?? ""));
  if (at < 0) return;
  const wanted = old.querySelector("table").tHead.rows[0].cells[at].getAttribute("aria-sort");
  const table = region.querySelector("table");
  if (table.tHead.rows[0].cells[at]?.hasAttribute("aria-sort") !== true) return;
  sort(table, at);
  if (table.tHead.rows[0].cells[at].getAttribute("aria-sort") !== wanted) sort(table, at);
}

function keepRows(region, old) {
  const [table, before] = [region, old].map((each) => each.querySelector("table"));
  const bar = barOf(table);
  const { text, most } = rowsOf(before);
  if (bar === null || (!text && most === LAID_OUT)) return;
  rowsOf(table).most = most;
  bar.querySelector("input").value = text ?? "";
  choose(table, text ?? "");
  fit(region);
}

const stops = (part) => [...part.querySelectorAll("a, button, input, summary")];

function takeOver(part, old) {
  const focused = stops(old).indexOf(document.activeElement);
  const rows = new Map();
  const drawn = new Map([...charts].filter(([drawing]) => old.contains(drawing)));
  for (const [details, before] of pairs(part, old, "details", (each) => each.closest("figure")?.dataset.name)) details.open = before.open;
  for (const [region, before] of pairs(part, old, ".scroll:not(.further)", captionOf)) {
    keepOrder(region, before);
    rows.set(region, before);
  }
  old.before(part);
  findTables(part);
  for (const [region, before] of rows) keepRows(region, before);
  findCharts(part);
  for (const [figure, before] of pairs(part, old, "figure.chart", (each) => each.dataset.name)) {
    goesOn(charts.get(figure.querySelector(".drawing")), drawn.get(before.querySelector(".drawing")));
  }
  for (const drawing of drawn.keys()) {
    if (!old.contains(drawing)) continue; // it goes on in a new figure
    charts.delete(drawing);
    Plotly.purge(drawing);
  }
  old.remove();
  if (focused >= 0) stops(part)[focused]?.focus({ preventScroll: true });
}

function take(text) {
  const fresh = new DOMParser().parseFromString(text, "text/html");
  const there = [window.scrollX, window.scrollY];
  const before = new Map([...known.keys()].map((part) => [headingOf(part), part]));
  const now = [...fresh.querySelectorAll("#content > div")].map((part) => [part, part.innerHTML]);
  let last = null;
  for (const [part, html] of now) {
    const old = before.get(headingOf(part));
    before.delete(headingOf(part));
    const isSame = old !== undefined && known.get(old) === html;
    const stays = isSame ? old : part;
    if (isSame) old.id = part.id;
    else if (old !== undefined) takeOver(part, old);
    else {
      if (last === null) main.prepend(part);
      else last.after(part);
      findTables(part);
      findCharts(part);
    }
    if (old !== undefined && !isSame) known.delete(old);
    known.set(stays, html);
    last = stays;
  }
  for (const old of before.values()) {
    known.delete(old);
    for (const drawing of [...charts.keys()].filter((each) => old.contains(each))) charts.delete(drawing);
    old.remove();
  }
  document.querySelector(".subtitle").textContent = fresh.querySelector(".subtitle").textContent;
  document.querySelector("nav ul").innerHTML = fresh.querySelector("nav ul").innerHTML;
  root.dataset.version = fresh.documentElement.dataset.version;
  root.dataset.charts = String(charts.size);
  window.scrollTo(...there);
}

let heardAt = performance.now();
let isAsking = false;

async function ask() {
  if (isAsking || document.hidden || root.classList.contains("paper")) return;
  isAsking = true;
  try {
    const headers = { "If-None-Match": `"${root.dataset.version}"` };
    const answer = await fetch("now", { headers, cache: "no-store", redirect: "error" });
    if (answer.status === 200) take(await answer.text());
    if (answer.status !== 200 && answer.status !== 304) throw new Error(`answered ${answer.status}`);
    heardAt = performance.now();
    say("This page follows the runs.");
  } catch {
    if (performance.now() - heardAt > PATIENCE * period) say("hpcml watch does not answer any more, or the tunnel to it is closed: this page stays as it was.");
  } finally {
    isAsking = false;
  }
}

say("This page follows the runs.");
window.setInterval(ask, period);
document.addEventListener("visibilitychange", ask);
