// Charts: what is chosen beside a chart redraws it.

const charts = [];

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
