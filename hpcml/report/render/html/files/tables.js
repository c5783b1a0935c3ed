// Tables: sorted by their headings.

const compared = new Intl.Collator(undefined, { numeric: true });

function sort(heading) {
  const table = heading.closest("table");
  const at = [...heading.parentNode.children].indexOf(heading);
  const direction = heading.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
  for (const other of heading.parentNode.children) other.setAttribute("aria-sort", "none");
  heading.setAttribute("aria-sort", direction);
  const sign = direction === "ascending" ? 1 : -1;
  const body = table.tBodies[0];
  const keyed = [...body.rows].map((row) => {
    const cell = row.cells[at];
    const order = cell.dataset.order;
    return { row, order: order === undefined ? null : Number(order), text: cell.textContent };
  });
  keyed.sort((a, b) => {
    if (!a.text || !b.text) return (a.text ? 0 : 1) - (b.text ? 0 : 1); // what is not known stays below
    if (a.order !== null && b.order !== null) return sign * (a.order - b.order);
    return sign * compared.compare(a.text, b.text);
  });
  body.append(...keyed.map((each) => each.row));
}

for (const heading of document.querySelectorAll("th[aria-sort]")) {
  heading.querySelector("button").addEventListener("click", () => sort(heading));
}
