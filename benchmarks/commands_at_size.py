"""What commands cost at 10, 1,000 and 10,000 runs: CPU time and memory of the whole process, against Python with click.

Run directories are written as `hpcml run` and its agent leave them (`store_at_size.write_run`: 100 settings, three
precisions, five seeds), and the store is made by the first command, which is measured too. Then each command is started
REPEAT times in turns, and of each the smallest CPU time is taken: other work on the machine can only add to it.

``--runs 10 1000`` chooses other sizes; ``--home DIR`` keeps the run directories there, to be used again.
``--plot FILE`` draws how CPU time grows with the runs, as a picture (with Chromium, or what CHROMIUM names).
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPEAT = 5
METRICS = ["loss", "step_time_s"]
STEPS = 20
MAIN = "from hpcml.cli.start import main; main()"
CLICK = "python -c 'import click'"
FIRST = "the first command, which reads all"
COMMANDS = ("runs", "runs --limit 20", "status", "show @1", "sync", "compare --by precision")


def used(argv: list[str], environ: dict[str, str]) -> tuple[float, float]:
    """Run *argv* with its output thrown away; return CPU seconds, user and system, and the largest memory in MB."""
    sink = [(os.POSIX_SPAWN_OPEN, descriptor, os.devnull, os.O_WRONLY, 0) for descriptor in (1, 2)]
    pid = os.posix_spawn(argv[0], argv, environ, file_actions=sink)
    _, status, usage = os.wait4(pid, 0)
    if status:
        raise SystemExit(f"{' '.join(argv)} ended with status {os.waitstatus_to_exitcode(status)}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def fill(home: Path, runs: int) -> None:
    """Write the runs that are not there yet; in a process of its own, since a child's memory begins as its parent's."""
    from store_at_size import write_run  # noqa: PLC0415 - as said: loads hpcml

    for number in range(runs):
        if not (home / "runs" / "benchmark" / f"20261121-{number:06d}-bench4" / "run.json").exists():
            write_run(home / "runs", number, METRICS, STEPS)


def table(home: Path, runs: int, repeat: int, hpcml: list[str]) -> dict[str, float]:
    """Print a line for each command: CPU seconds, their ratio to Python with click, and memory; return the first."""
    subprocess.run([sys.executable, __file__, "--only-fill", "--runs", str(runs), "--home", str(home)], check=True)
    environ = {**os.environ, "HPCML_HOME": str(home), "HPCML_STORE": str(home / "store.db")}
    for left in home.glob("store.db*"):
        left.unlink()
    first = used([*hpcml, "runs", "--limit", "1"], environ)
    argvs = {CLICK: [sys.executable, "-P", "-c", "import click"]}
    argvs |= {f"hpcml {words}": [*hpcml, *words.split()] for words in COMMANDS}
    best = dict.fromkeys(argvs, (float("inf"), 0.0))
    for _ in range(repeat):
        for name, argv in argvs.items():
            cpu_s, memory_mb = used(argv, environ)
            best[name] = (min(best[name][0], cpu_s), max(best[name][1], memory_mb))
    print(f"\n| {runs:,} runs | CPU s | over `import click` | MB |\n|---|---:|---:|---:|")
    floor_s = best[CLICK][0]
    for name, (cpu_s, memory_mb) in {**best, FIRST: first}.items():
        print(f"| `{name}` | {cpu_s:.3f} | {cpu_s / floor_s:.1f} | {memory_mb:.0f} |", flush=True)
    return {name: cpu_s for name, (cpu_s, _) in {**best, FIRST: first}.items()}


def draw(found: dict[int, dict[str, float]], path: Path) -> None:
    """Draw the CPU seconds by runs of each command, both on logarithmic axes."""
    import plotly.graph_objects as go  # noqa: PLC0415 - for those who ask for a picture
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    names = list(next(iter(found.values())))
    lines = [go.Scatter(name=name, x=list(found), y=[of[name] for of in found.values()]) for name in names]
    figure = go.Figure(lines, {"template": "plotly_white", "width": 900, "height": 480, "margin": {"t": 20, "r": 20}})
    figure.update_traces(mode="lines+markers").update_xaxes(type="log", dtick=1, title="runs")
    figure.update_yaxes(type="log", title="CPU s of the whole process")
    with sync_playwright() as playwright:
        chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 900, "height": 480})
        page.set_content(figure.to_html(include_plotlyjs=True, config={"staticPlot": True}))
        page.wait_for_selector(".main-svg")
        page.screenshot(path=path)
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, nargs="+", default=[10, 1000, 10_000], help="how many runs")
    parser.add_argument("--home", type=Path, help="where the run directories are kept, to be used again")
    parser.add_argument("--repeat", type=int, default=REPEAT, help="how often each command is started")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw how CPU time grows, as PNG")
    parser.add_argument("--only-fill", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.only_fill:
        fill(chosen.home, *chosen.runs)
        return
    hpcml = [sys.executable, "-P", "-c", MAIN]
    with tempfile.TemporaryDirectory() as name:
        found = {
            runs: table((chosen.home or Path(name)) / str(runs), runs, chosen.repeat, hpcml) for runs in chosen.runs
        }
    if chosen.plot is not None:
        draw(found, chosen.plot)


if __name__ == "__main__":
    main()
