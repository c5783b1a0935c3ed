"""Draw docs/pictures/: ``python docs/pictures.py [NAME]... [--home HOME] [--out DIR]``.

Nothing in them is written by hand: the commands of `SHOWN` are run on this machine, with the program that
docs/pictures.md shows, and what they print is drawn; `path` names the groups, files, schedulers and views that there
are. The report is that of ``hpcml run -m precision=fp32,tf32,amp seed=0,1,2,3,4``, made anew unless *HOME* holds these
runs in the experiment ``demo``. Chromium is needed for `report` and `watch`, or what CHROMIUM names.
"""

from __future__ import annotations

import argparse
import html
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright
from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

from hpcml.schedulers.registry import BACKENDS
from hpcml.store.views import VIEWS

DOCS = Path(__file__).resolve().parent
_COMMAND = "from hpcml.cli.main import main; main()"
_COLUMNS = 80
_WIDTH, _HEIGHT = 1100, 545
_COLOURS = 64  # enough for text and few tones, and a third of the bytes
_JUDGED = "objective.metric=loss objective.goal=min objective.margin=0.01"
_SWEEP = f"run -m experiment=lr {_JUDGED} -- python train.py --lr 0.02,0.05,0.1 --seed 0..4"

SHOWN: Mapping[str, Sequence[str]] = {
    "path": (_SWEEP, "compare --experiment lr --by lr"),
    "run": ("run objective.metric=loss -- python train.py --lr 0.1",),
    "compare": (_SWEEP, "compare --experiment lr --by lr"),
    "report": (
        "run -m precision=fp32,tf32,amp seed=0,1,2,3,4 experiment=demo",
        "report --experiment demo --by precision",
    ),
    "watch": (f"{_SWEEP} --samples 40000", "watch lr --by lr"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """Where commands are typed: a folder with the page's program, a home, and where pictures go."""

    folder: Path
    home: Path
    out: Path

    @property
    def environ(self) -> dict[str, str]:
        """The environment of a terminal of 80 columns with colours, in the virtual environment of this Python."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HPCML_")}
        own = {"HPCML_HOME": str(self.home), "COLUMNS": str(_COLUMNS), "FORCE_COLOR": "1", "TERM": "xterm-256color"}
        return {**kept, **own, "PATH": f"{Path(sys.executable).parent}:{kept['PATH']}"}

    def type(self, words: str) -> str:
        """Return what ``hpcml WORDS`` prints, its errors between; raise `CalledProcessError` where it fails."""
        argv = [sys.executable, "-c", _COMMAND, *shlex.split(words)]
        done = subprocess.run(
            argv, cwd=self.folder, env=self.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True
        )
        return done.stdout.decode()


def main() -> None:
    """Draw the pictures that are named, or all."""
    draw: Mapping[str, Callable[[Desk], None]] = {
        "path": draw_path,
        "run": draw_run,
        "compare": draw_compare,
        "report": draw_report,
        "watch": draw_watch,
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(draw)}; default: all")
    parser.add_argument("--home", type=Path, help="holds the runs of the report")
    parser.add_argument("--out", type=Path, default=DOCS / "pictures")
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(draw):
        parser.error(f"no picture is called {', '.join(sorted(unknown))}: there are {', '.join(draw)}")
    asked.out.mkdir(parents=True, exist_ok=True)
    for name in asked.names or draw:
        with tempfile.TemporaryDirectory(prefix="hpcml-") as scratch:
            desk = Desk(folder=Path(scratch, "study"), home=Path(scratch, "home"), out=asked.out.resolve())
            desk.folder.mkdir()
            (desk.folder / "train.py").write_text(_program(), encoding="utf-8")
            if name == "report" and asked.home is not None:
                desk = Desk(folder=desk.folder, home=asked.home.resolve(), out=desk.out)
            draw[name](desk)
            for drawn in sorted(desk.out.glob(f"{name}.*")):
                sys.stdout.write(f"{drawn}: {drawn.stat().st_size >> 10} KiB\n")


def _program() -> str:
    page = (DOCS / "pictures.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- file: train.py -->\n```python\n(.*?)```", page, re.DOTALL)
    if found is None:
        raise SystemExit("docs/pictures.md shows no train.py")
    return found[1]


# ---- terminals -------------------------------------------------------------------------------------------------------


def draw_run(desk: Desk) -> None:
    """Draw one run as the terminal shows it once it has ended."""
    (words,) = SHOWN["run"]
    _draw_terminal(desk, "run", [(words, desk.type(words))])


def draw_compare(desk: Desk) -> None:
    """Draw the comparison of a sweep; what the sweep itself printed is not shown."""
    sweep, compare = SHOWN["compare"]
    desk.type(sweep)
    _draw_terminal(desk, "compare", [(sweep, ""), (compare, desk.type(compare))])


def _draw_terminal(desk: Desk, name: str, typed: Sequence[tuple[str, str]]) -> None:
    screen = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True, highlight=False)
    for words, printed in typed:
        screen.print(Text(f"$ hpcml {words}", style="bold"))
        if printed:
            screen.print(Text.from_ansi("\n".join(as_left(printed))))
    screen.print()  # rich cuts what reaches below the last line
    title = f"hpcml {typed[-1][0].split()[0]}"
    text = screen.export_svg(title=title, theme=SVG_EXPORT_THEME, code_format=_TERMINAL, unique_id=name)
    (desk.out / f"{name}.svg").write_text(text, encoding="utf-8")


# Rich's own form without the font that it loads from the network: an image in a page may load nothing.
_TERMINAL = """<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""  # noqa: E501


def as_left(printed: str) -> list[str]:
    r"""Return the lines that a terminal is left with: a line that is written again replaces the earlier one.

    >>> as_left("a 1 %\r\x1b[2Ka 99 %\x1b[1A\r\x1b[2Kb\n")
    ['b', 'a 99 %']
    """
    lines, row = [""], 1
    for part in re.split(r"(\n|\r|\x1b\[2K|\x1b\[\d*A|\x1b\[\?25[hl])", f"\n{printed}"):
        if part == "\n":
            row += 1
        elif re.fullmatch(r"\x1b\[\d*A", part):
            row -= int(part[2:-1] or 1)
        elif part in ("\r", "\x1b[?25h", "\x1b[?25l"):
            continue
        while len(lines) <= row:
            lines.append("")
        if part == "\x1b[2K":
            lines[row] = ""
        elif part != "\n" and not re.fullmatch(r"\x1b\[\d*A", part):
            lines[row] += part
    shown = [line.rstrip() for line in lines]
    return shown[next((at for at, line in enumerate(shown) if line), 0) : len(shown) - (not shown[-1])]


# ---- from a command line to a verdict --------------------------------------------------------------------------------


def draw_path(desk: Desk) -> None:
    """Draw the way of a sweep, with the names of what there is on it."""
    sweep, compare = SHOWN["path"]
    desk.type(sweep)
    run_dir = min(desk.home.glob("runs/lr/*"))
    script = [line for line in (run_dir / "job.sh").read_text(encoding="utf-8").splitlines() if line.strip()]
    writers = sorted({path.stem.rpartition("-")[2] for path in run_dir.glob("journal/*.jsonl")})
    files = sorted(f"{path.name}{'/' * path.is_dir()}" for path in run_dir.iterdir())
    groups = sorted(path.name for path in (DOCS.parent / "conf").iterdir() if path.is_dir())
    finding = next(line.strip() for line in _plain(desk.type(compare)) if re.match(r"\s+\S+: ", line))
    typed, _, program = f"hpcml {sweep}".partition(" -- ")
    boxes = [
        ("Command line", [f"$ {typed}", f"  -- {program}"]),
        ("Configuration", ["conf/", *_listed(groups)]),
        ("Script", ["job.sh", script[0], script[-1].partition("from ")[2].split()[0]]),
        ("Queue", _listed(sorted(backend.title for backend in BACKENDS.values()))),
        ("Node: the agent", ["starts the program, samples", "GPUs and host; writes journals:", *_listed(writers)]),
        ("Run directory", _listed(files)),
        ("Store: an index", ["views for hpcml query:", *_listed(sorted(VIEWS))]),
        ("Comparison", [f"$ hpcml {compare}", finding]),
    ]
    (desk.out / "path.svg").write_text(_flow(boxes), encoding="utf-8")


def _plain(printed: str) -> list[str]:
    return [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in printed.splitlines()]


def _listed(names: Sequence[str]) -> list[str]:
    return [", ".join(names)]


_BOX_WIDTH, _BOX_HEIGHT, _GAP, _ROW = 226, 130, 24, 4
_LETTERS, _LINES = 33, 6  # of a box


def _flow(boxes: Sequence[tuple[str, Sequence[str]]]) -> str:
    width = _ROW * (_BOX_WIDTH + _GAP) + _GAP
    rows = -(-len(boxes) // _ROW)
    height = rows * (_BOX_HEIGHT + 2 * _GAP)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
            *(part for at, box in enumerate(boxes) for part in _box(at, *box, is_last=at + 1 == len(boxes))),
            "</svg>\n",
        ]
    )


def _box(at: int, title: str, lines: Sequence[str], *, is_last: bool) -> Iterator[str]:
    x = _GAP + at % _ROW * (_BOX_WIDTH + _GAP)
    y = _GAP + at // _ROW * (_BOX_HEIGHT + 2 * _GAP) - _GAP // 2
    yield f'<rect x="{x}" y="{y}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="6" fill="#f5f6f8" stroke="#56606b"/>'
    yield f'<text x="{x + 10}" y="{y + 22}" font-weight="bold" font-size="15" fill="#1b1f24">{title}</text>'
    shown = [part for line in lines for part in _wrapped(line)]
    if len(shown) > _LINES:
        raise SystemExit(f"{title} has {len(shown)} lines; {_LINES} have room: make the boxes of pictures.py higher")
    for down, line in enumerate(shown):
        place = f'x="{x + 10}" y="{y + 42 + 14 * down}" xml:space="preserve"'
        yield f'<text {place} font-family="monospace" font-size="10.5" fill="#1b1f24">{html.escape(line)}</text>'
    if is_last:
        return
    middle = y + _BOX_HEIGHT / 2
    ends_row = at % _ROW == _ROW - 1
    far = y + _BOX_HEIGHT + _GAP
    path = (
        f"M {x + _BOX_WIDTH / 2} {y + _BOX_HEIGHT} V {far - 2} H {_GAP + _BOX_WIDTH / 2} v {_GAP - 4}"
        if ends_row
        else f"M {x + _BOX_WIDTH} {middle} h {_GAP - 7}"
    )
    tip = (
        f"M {_GAP + _BOX_WIDTH / 2 - 5} {far + _GAP - 8} h 10 l -5 7 z"
        if ends_row
        else f"M {x + _BOX_WIDTH + _GAP - 8} {middle - 5} v 10 l 7 -5 z"
    )
    yield f'<path d="{path}" fill="none" stroke="#005a94" stroke-width="2"/><path d="{tip}" fill="#005a94"/>'


def _wrapped(line: str) -> list[str]:
    words, lines = line.split(" "), [""]
    for word in words:
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if len(joined) > _LETTERS and lines[-1]:
            lines.append(word)
        else:
            lines[-1] = joined
    return lines


# ---- pages -----------------------------------------------------------------------------------------------------------

# True once runs go and their processors are measured, which is scrolled to; at once, since the page is made anew.
_SHOW_WHAT_GOES = """() => {
    const sections = [...document.querySelectorAll('section')];
    const now = sections.find(each => each.querySelector('h2')?.textContent === 'Right now');
    const isThere = ['RUNNING', 'cores busy'].every(word => now?.innerText.includes(word));
    if (isThere) now.scrollIntoView();
    return isThere;
}"""


def draw_report(desk: Desk) -> None:
    """Draw the first screen of a report of three precisions."""
    run, report = SHOWN["report"]
    if not (desk.home / "runs" / "demo").is_dir():
        desk.type(run)
    file = desk.folder / "report.html"
    desk.type(f"{report} -o {file}")
    with _browser() as page:
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-charts]", state="attached")
        _take(page, desk.out / "report.png")


def draw_watch(desk: Desk) -> None:
    """Draw the page of `hpcml watch` while the runs of a sweep go."""
    sweep, watch = SHOWN["watch"]
    with _going(desk, sweep):
        while not any(desk.home.glob("runs/lr/*/journal/*-metrics.jsonl")):
            desk.type("runs")
        with _going(desk, f"{watch} --port 0") as served, _browser() as page:
            page.goto(next(line for line in served.stdout or () if line.startswith("http")).strip())
            page.wait_for_selector("html[data-charts]", state="attached")
            page.wait_for_function(_SHOW_WHAT_GOES)
            _take(page, desk.out / "watch.png")
        desk.type("cancel --experiment lr --yes")


@contextmanager
def _going(desk: Desk, words: str) -> Iterator[subprocess.Popen[str]]:
    """Run ``hpcml WORDS`` until the block ends."""
    argv = [sys.executable, "-u", "-c", _COMMAND, *shlex.split(words)]
    went = subprocess.Popen(
        argv, cwd=desk.folder, env=desk.environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield went
    finally:
        went.terminate()
        went.communicate()


@contextmanager
def _browser() -> Iterator[Page]:
    with sync_playwright() as playwright:
        chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield browser.new_page(viewport={"width": _WIDTH, "height": _HEIGHT})
        browser.close()


def _take(page: Page, target: Path) -> None:
    with Image.open(io.BytesIO(page.screenshot())) as screen:
        screen.convert("RGB").quantize(_COLOURS).save(target, optimize=True)


if __name__ == "__main__":
    main()
