// The page's script: charts are drawn, tables are sorted by a click on a heading, and both fit onto paper.

const figures = [...document.querySelectorAll("figure.chart")].map((figure) => ({
  place: figure.querySelector(".drawing"),
  plot: JSON.parse(figure.querySelector("script").textContent),
}));
// A finger that scrolls the page must not zoom a chart.
const dragmode = matchMedia("(pointer: coarse)").matches ? false : "zoom";
for (const { place, plot } of figures) {
  Plotly.newPlot(place, plot.data, { ...plot.layout, dragmode }, { responsive: true, displaylogo: false });
}
document.documentElement.dataset.charts = figures.length;

function sort(button) {
  const heading = button.closest("th"), table = heading.closest("table"), index = heading.cellIndex;
  const direction = heading.ariaSort === "ascending" ? "descending" : "ascending";
  const key = (row) => row.cells[index].dataset.order ?? row.cells[index].textContent;
  const sign = direction === "ascending" ? 1 : -1;
  const rows = [...table.tBodies[0].rows].map((row) => [key(row), row]);
  rows.sort(([one], [other]) => {
    if (one === "" || other === "") return (one === "") - (other === ""); // what is not known comes last
    return sign * (one - other || (isNaN(one - other) ? one.localeCompare(other, "en", { numeric: true }) : 0));
  });
  for (const each of table.tHead.rows[0].cells) each.ariaSort = each === heading ? direction : "none";
  table.tBodies[0].append(...rows.map(([, row]) => row));
}
document.addEventListener("click", (event) => {
  const button = event.target.closest("thead button");
  if (button !== null) sort(button);
});

const PAPER = 184 * 96 / 25.4; // A4 between its margins, in pixels
addEventListener("beforeprint", () => {
  document.documentElement.classList.add("paper");
  for (const { place } of figures) Plotly.relayout(place, { width: place.closest(".charts") ? PAPER / 2 - 30 : PAPER - 30 });
  for (const table of document.querySelectorAll(".scroll table")) table.style.zoom = Math.min(1, PAPER / table.offsetWidth);
});
addEventListener("afterprint", () => {
  document.documentElement.classList.remove("paper");
  for (const { place } of figures) Plotly.relayout(place, { width: null, autosize: true });
  for (const table of document.querySelectorAll(".scroll table")) table.style.zoom = 1;
});
