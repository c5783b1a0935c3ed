"use strict";
(() => {
  const root = document.documentElement;
  const charts = [];

  // ---- colours -------------------------------------------------------------------------------------------------
  const button = document.getElementById("theme");
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";

  function colours(layout) {
    const style = getComputedStyle(root);
    const ink = style.getPropertyValue("--ink").trim();
    const line = style.getPropertyValue("--line").trim();
    const found = { "font.color": ink, "hoverlabel.bgcolor": style.getPropertyValue("--panel").trim() };
    for (const axis of Object.keys(layout).filter((key) => /^[xy]axis/.test(key))) {
      found[`${axis}.gridcolor`] = line;
      found[`${axis}.zerolinecolor`] = line;
      found[`${axis}.linecolor`] = line;
    }
    return found;
  }

  function recolour() {
    button.textContent = isDark() ? "Light colours" : "Dark colours";
    for (const chart of charts) Plotly.relayout(chart.drawing, colours(chart.layout));
  }

  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    recolour();
  });
  system.addEventListener("change", recolour);
  let before;
  window.addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    root.dataset.theme = "light";
    recolour();
  });
  window.addEventListener("afterprint", () => {
    if (before === undefined) delete root.dataset.theme;
    else root.dataset.theme = before;
    recolour();
  });

  // ---- charts --------------------------------------------------------------------------------------------------
  const isShown = (chart, trace) => trace.xs[chart.view] !== undefined && !chart.hidden.has(trace.level);

  function redraw(chart) {
    const x = chart.traces.map((trace) => trace.xs[chart.view] ?? []);
    const visible = chart.traces.map((trace) => isShown(chart, trace));
    const title = chart.views.find((view) => view.key === chart.view).title;
    Plotly.update(chart.drawing, { x, visible }, { "xaxis.title.text": title, "xaxis.autorange": true });
  }

  function draw(source) {
    const drawing = document.getElementById(source.dataset.chart);
    const chart = { ...JSON.parse(source.textContent), drawing, hidden: new Set() };
    chart.view = chart.views[0].key;
    const data = chart.traces.map((trace) => ({
      ...trace.drawn, x: trace.xs[chart.view] ?? [], visible: isShown(chart, trace),
    }));
    const layout = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, autosize: true,
      margin: { l: 48, r: 16, t: 12, b: 44 }, font: { family: getComputedStyle(document.body).fontFamily, size: 12 },
      hoverlabel: {}, dragmode: "zoom", ...chart.layout,
    };
    layout.xaxis = { ...layout.xaxis, title: { text: chart.views[0].title } };
    const options = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d"] };
    // A finger that scrolls the page must not zoom a chart.
    if (window.matchMedia("(pointer: coarse)").matches) layout.dragmode = false;
    const done = Plotly.newPlot(drawing, data, layout, options);
    charts.push(chart);
    const figure = drawing.closest("figure");
    for (const choice of figure.querySelectorAll(".views input")) {
      choice.addEventListener("change", () => { chart.view = choice.value; redraw(chart); });
    }
    for (const toggle of figure.querySelectorAll(".levels button")) {
      const level = chart.levels[Number(toggle.dataset.level)];
      toggle.addEventListener("click", () => {
        const hides = !chart.hidden.delete(level);
        if (hides) chart.hidden.add(level);
        toggle.setAttribute("aria-pressed", String(!hides));
        redraw(chart);
      });
    }
    return done.then(() => Plotly.relayout(drawing, colours(layout)));
  }

  async function drawAll() {
    for (const source of document.querySelectorAll("script[data-chart]")) {
      await draw(source);
      await new Promise((resolve) => setTimeout(resolve, 0)); // the page stays alive in between
    }
    root.dataset.drawn = String(charts.length);
  }

  // ---- tables --------------------------------------------------------------------------------------------------
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

  recolour();
  drawAll();
})();
