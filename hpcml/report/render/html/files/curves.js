// Curves as a reader wants to see them: some of the runs, smoothed, on a logarithmic axis. What was recorded stays
// visible behind what was smoothed, and means are always those of all runs.

const isLine = (trace) => trace.role === "run" || trace.role === "mean";

// An exponential moving average, as TensorBoard's without the pull to zero at the beginning (D. P. Kingma, J. Ba, Adam,
// 2015, section 3). The weight is that of what was a distance of *unit* before, so that lines of few and of many points
// lag alike. What is not known stays unknown.
function smoothed(x, values, weight, unit) {
  let sum = 0;
  let total = 0;
  let last = -Infinity;
  return values.map((value, at) => {
    if (value === null || x[at] === null) return null;
    const kept = weight ** (Math.max(x[at] - last, 0) / unit); // a run that went on from a checkpoint went back
    last = x[at];
    sum = kept * sum + (1 - kept) * value;
    total = kept * total + (1 - kept);
    return sum / total;
  });
}

// The distance of neighbouring points, of the line that has the closest.
function closest(lines) {
  const known = lines.map((x) => x.filter((each) => each !== null)).filter((x) => x.length > 1);
  return Math.min(...known.map((x) => (x.at(-1) - x[0]) / (x.length - 1)).filter((each) => each > 0));
}

// Phrases are set apart by commas, and a number in them is a whole one: "seed 1" is not "seed 10".
function phrasesOf(text) {
  const phrases = text.split(",").map((phrase) => phrase.trim().toLowerCase()).filter((phrase) => phrase);
  return phrases.map((phrase) => {
    const literal = phrase.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
    return new RegExp(`${/^\d/.test(phrase) ? "(?<!\\d)" : ""}${literal}${/\d$/.test(phrase) ? "(?!\\d)" : ""}`);
  });
}

function isChosen(trace, phrases) {
  const name = trace.drawn.meta.toLowerCase().replaceAll(",", "");
  return phrases.length === 0 || phrases.some((phrase) => phrase.test(name));
}

// The smallest value of all lines, or null where a logarithm would leave one of them out.
function smallest(traces) {
  const values = traces.filter(isLine).flatMap((trace) => trace.drawn.y).filter((value) => value !== null);
  const least = values.reduce((least, value) => Math.min(least, value), Infinity);
  return least > 0 && least < Infinity ? least : null;
}

// What plotly is to draw of a chart.
function dataOf(chart) {
  const unit = chart.weight > 0 ? closest(chart.traces.filter(isLine).map((trace) => trace.xs[chart.view] ?? [])) : 1;
  return chart.traces.flatMap((trace) => {
    const x = trace.xs[chart.view];
    const isAsked = trace.role !== "run" || isChosen(trace, chart.phrases);
    const raw = { ...trace.drawn, x: x ?? [], visible: x !== undefined && !chart.hidden.has(trace.level) && isAsked };
    if (trace.role === "band" && chart.isLog) raw.y = raw.y.map((value) => Math.max(value, chart.smallest));
    if (!isLine(trace) || chart.weight === 0) return [raw];
    const faint = { ...raw, opacity: 0.35, line: { ...raw.line, width: 1, dash: "solid" }, mode: "lines", hoverinfo: "skip", hovertemplate: null };
    const smooth = { ...raw, y: smoothed(raw.x, raw.y, chart.weight, unit), hovertemplate: `${raw.hovertemplate}, smoothed` };
    return [faint, smooth];
  });
}

// What the reader chose, in words: it is printed, too.
function chosen(chart) {
  const runs = chart.traces.filter((trace) => trace.role === "run");
  const drawn = runs.filter((trace) => isChosen(trace, chart.phrases)).length;
  const said = [];
  if (chart.phrases.length > 0) said.push(`${drawn} of ${runs.length} runs are drawn; means are over all of them.`);
  if (chart.weight > 0) {
    said.push(`Smoothed by an exponential moving average of weight ${chart.weight}; faint lines: as recorded.`);
  }
  if (chart.isLog) said.push("Logarithmic axis: intervals that reach below the smallest value end there.");
  return said.join(" ");
}

function findWays(chart, figure) {
  const ways = figure.querySelector(".ways");
  if (ways === null) return;
  const [log, weight, runs] = ["log", "weight", "runs"].map((way) => ways.querySelector(`[data-way="${way}"]`));
  chart.smallest = smallest(chart.traces);
  log.closest("label").hidden = chart.smallest === null;
  runs.closest("label").hidden = !chart.traces.some((trace) => trace.role === "run");
  const change = () => {
    chart.isLog = log.checked;
    chart.weight = Number(weight.value);
    chart.phrases = phrasesOf(runs.value);
    figure.querySelector(".chosen").textContent = chosen(chart);
    redraw(chart);
  };
  log.addEventListener("change", () => {
    change();
    Plotly.relayout(chart.drawing, { "yaxis.type": log.checked ? "log" : "linear", "yaxis.autorange": true });
  });
  weight.addEventListener("change", change);
  runs.addEventListener("input", change);
}
