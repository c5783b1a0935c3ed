// The page: its colours, and that paper is light.

const button = document.getElementById("theme");
const system = window.matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";

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

recolour();
drawAll();
