"""Draw docs/report.png, the picture of a report in README.md: ``python docs/picture.py [HOME]``.

It is the first screen of `hpcml report` on the runs of ``hpcml run -m precision=fp32,tf32,amp seed=0,1,2,3,4``, which
are made anew unless *HOME* is a home that holds them, in the experiment ``demo``. Chromium is needed, or what
CHROMIUM names.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

PICTURE = Path(__file__).resolve().parent / "report.png"
_COMMAND = "from hpcml.cli.main import main; main()"
_WIDTH, _HEIGHT = 1100, 545
_COLOURS = 64  # enough for text and few tones, and a third of the bytes
_SWEEP = ("run", "-m", "precision=fp32,tf32,amp", "seed=0,1,2,3,4", "experiment=demo")


def main() -> None:
    """Make the runs where they are not given, report on them, and draw the first screen."""
    with tempfile.TemporaryDirectory() as scratch:
        home = sys.argv[1] if len(sys.argv) > 1 else f"{scratch}/home"
        if len(sys.argv) == 1:
            _hpcml(home, *_SWEEP)
        _hpcml(home, "report", "--experiment", "demo", "--by", "precision", "-o", f"{scratch}/report.html")
        with sync_playwright() as playwright:
            chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
            page = browser.new_page(viewport={"width": _WIDTH, "height": _HEIGHT})
            page.goto(f"file://{scratch}/report.html")
            page.wait_for_selector("html[data-charts]", state="attached")
            page.screenshot(path=f"{scratch}/screen.png")
            browser.close()
        with Image.open(f"{scratch}/screen.png") as screen:
            screen.convert("RGB").quantize(_COLOURS).save(PICTURE, optimize=True)
    sys.stdout.write(f"{PICTURE}: {PICTURE.stat().st_size >> 10} KiB\n")


def _hpcml(home: str, *words: str) -> None:
    subprocess.run([sys.executable, "-c", _COMMAND, *words], env={**os.environ, "HPCML_HOME": home}, check=True)


if __name__ == "__main__":
    main()
