// Charts: drawn when they come near the screen, in the colours of the page; what is chosen beside a chart redraws it.

const charts = new Map(); // by the element that is drawn in
const NEAR = "600px"; // below and above the screen

// Plotly is in the page deflated, a third as large. The page's policy knows its hash, and lets it run as it was.
async function unpackPlotly() {
  const packed = document.getElementById("plotly");
  if (packed === null) return;
  if (typeof DecompressionStream === "undefined") {
    for (const figure of document.querySelectorAll("figure.chart")) tooOld(figure);
    return;
  }
  const bytes = Uint8Array.from(atob(packed.textContent), (character) => character.charCodeAt(0));
  const text = await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
  const script = document.createElement("script");
  script.textContent = text;
  packed.replaceWith(script);
}

function tooOld(figure) {
  figure.querySelector(".drawing").remove();
  for (const choice of figure.querySelectorAll(".views, .levels, .tools")) choice.remove();
  figure.querySelector(".described").textContent += " Not drawn: this browser is older than Chromium 80, Firefox 113 and Safari 16.4.";
  figure.querySelector("details").open = true;
}

function themed(layout) {
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
  for (const chart of charts.values()) if (chart.isDrawn) Plotly.relayout(chart.drawing, themed(chart.layout));
}

const titleOf = (chart) => chart.views.find((view) => view.key === chart.view).title;

function redraw(chart) {
  if (chart.isDrawn) Plotly.react(chart.drawing, dataOf(chart), chart.layout);
}

function look(chart, view) {
  chart.view = view;
  redraw(chart);
  if (chart.isDrawn) Plotly.relayout(chart.drawing, { "xaxis.title.text": titleOf(chart), "xaxis.autorange": true });
}

function layoutOf(chart) {
  const layout = {
    uirevision: "the reader's", paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", showlegend: false, autosize: true,
    margin: { l: 48, r: 16, t: 12, b: 44 }, font: { family: getComputedStyle(document.body).fontFamily, size: 12 },
    hoverlabel: {}, dragmode: "zoom", ...chart.layout,
  };
  layout.xaxis = { ...layout.xaxis, title: { text: titleOf(chart) } };
  chart.autorange = layout.yaxis.autorange ?? true; // plotly writes into the layout what the reader zooms to
  if (chart.isLog) layout.yaxis = { ...layout.yaxis, type: "log" };
  // A finger that scrolls the page must not zoom a chart.
  if (window.matchMedia("(pointer: coarse)").matches) layout.dragmode = false;
  return layout;
}

function draw(chart) {
  if (chart.isDrawn) return;
  chart.isDrawn = true;
  const layout = layoutOf(chart);
  chart.layout = layout;
  // Plotly's own tool bar lies over the data: what it is for stands beside the chart's title.
  Plotly.newPlot(chart.drawing, dataOf(chart), layout, { responsive: true, displaylogo: false, displayModeBar: false });
  Plotly.relayout(chart.drawing, themed(layout));
  root.dataset.drawn = String([...charts.values()].filter((each) => each.isDrawn).length);
}

// What the reader chose on an earlier page goes on: the same drawing, with its zoom, takes the new values.
function goesOn(chart, before) {
  const figure = chart.drawing.closest("figure");
  const old = before.drawing.closest("figure");
  for (const input of old.querySelectorAll("input[data-way]")) {
    const same = figure.querySelector(`input[data-way="${input.dataset.way}"]`);
    if (same === null) continue;
    same.checked = input.checked;
    same.value = input.value;
  }
  if (chart.views.some((view) => view.key === before.view)) chart.view = before.view;
  for (const choice of figure.querySelectorAll('.views input[type="radio"]')) choice.checked = choice.value === chart.view;
  Object.assign(chart, { hidden: new Set(chart.levels.filter((level) => before.hidden.has(level))), phrases: before.phrases, weight: before.weight, isLog: before.isLog && chart.smallest !== null });
  figure.querySelectorAll(".levels button").forEach((toggle, at) => toggle.setAttribute("aria-pressed", String(!chart.hidden.has(chart.levels[at]))));
  const said = figure.querySelector(".chosen");
  if (said !== null) said.textContent = chosen(chart);
  if (!before.isDrawn) return;
  const fresh = chart.drawing;
  for (const name of ["id", "aria-label"]) before.drawing.setAttribute(name, fresh.getAttribute(name));
  fresh.replaceWith(before.drawing);
  charts.delete(fresh);
  chart.drawing = before.drawing;
  charts.set(chart.drawing, chart);
  chart.isDrawn = true;
  chart.layout = layoutOf(chart);
  Plotly.react(chart.drawing, dataOf(chart), chart.layout);
  Plotly.relayout(chart.drawing, themed(chart.layout));
}

function found(source) {
  const drawing = document.getElementById(source.dataset.chart);
  const chart = { ...JSON.parse(source.textContent), drawing, isDrawn: false };
  Object.assign(chart, { view: chart.views[0].key, hidden: new Set(), phrases: [], weight: 0, isLog: false });
  charts.set(drawing, chart);
  const figure = drawing.closest("figure");
  for (const choice of figure.querySelectorAll('.views input[type="radio"]')) {
    choice.addEventListener("change", () => look(chart, choice.value));
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
  findWays(chart, figure);
  const tools = {
    whole: () => Plotly.relayout(chart.drawing, { "xaxis.autorange": true, "yaxis.autorange": chart.autorange }),
    picture: () => Plotly.downloadImage(chart.drawing, { format: "png", scale: 2, filename: figure.dataset.name }),
  };
  for (const tool of figure.querySelectorAll("button[data-tool]")) {
    tool.addEventListener("click", () => { draw(chart); tools[tool.dataset.tool](); });
  }
  return chart;
}

const near = new IntersectionObserver((entries) => {
  for (const entry of entries.filter((each) => each.isIntersecting)) {
    near.unobserve(entry.target);
    if (charts.has(entry.target)) draw(charts.get(entry.target));
  }
}, { rootMargin: NEAR });

function findCharts(scope = document) {
  if (typeof Plotly !== "undefined") for (const source of scope.querySelectorAll("script[data-chart]")) near.observe(found(source).drawing);
  root.dataset.charts = String(charts.size);
}

function drawAll() {
  for (const chart of charts.values()) draw(chart);
}

// ---- paper ---------------------------------------------------------------------------------------------------------
// Paper is narrower than a screen: each chart is drawn anew as wide as it will be there. As a picture with a viewBox it
// also follows a page that is narrower still.

function chartsToPaper() {
  drawAll();
  for (const chart of charts.values()) {
    const width = chart.drawing.clientWidth;
    const height = chart.drawing.clientHeight;
    Plotly.relayout(chart.drawing, { ...themed(chart.layout), autosize: false, width, height, "font.size": 10 });
    for (const svg of chart.drawing.querySelectorAll(".main-svg")) svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    chart.drawing.querySelector(".svg-container").style.aspectRatio = `${width} / ${height}`;
  }
}

function chartsToScreen() {
  for (const chart of charts.values()) {
    for (const svg of chart.drawing.querySelectorAll(".main-svg")) svg.removeAttribute("viewBox");
    chart.drawing.querySelector(".svg-container").style.aspectRatio = "";
    Plotly.relayout(chart.drawing, { ...themed(chart.layout), autosize: true, width: null, height: null, "font.size": 12 });
  }
}
