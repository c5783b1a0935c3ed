// The page: its colours, and what it looks like on paper.

const button = document.getElementById("theme");
const system = window.matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";

function nameTheme() {
  button.textContent = isDark() ? "Light colours" : "Dark colours";
}

button.addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  nameTheme();
  recolour();
});
system.addEventListener("change", () => { nameTheme(); recolour(); });

window.addEventListener("beforeprint", () => {
  root.classList.add("paper");
  chartsToPaper();
  fitAll();
});
window.addEventListener("afterprint", () => {
  root.classList.remove("paper");
  chartsToScreen();
  fitAll();
});

nameTheme();
findTables();
unpackPlotly().then(() => findCharts());
