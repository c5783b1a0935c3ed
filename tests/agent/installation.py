"""A copy of hpcml that a test may edit, and what a Python of it has loaded from a bundle."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOOK = """
import sys
from hpcml.bundled import use_bundle
use_bundle()
import json, os, re
from hpcml.agent import signals, turns
from hpcml.runs.plan import Image
patterns = [value for module in list(sys.modules.values()) for value in list(vars(module).values())
            if isinstance(value, re.Pattern)]
loaders = {name: type(getattr(module, "__loader__", None)).__name__ for name, module in sys.modules.items()}
bundled = [name for name, loader in loaders.items() if loader == "_Loader"]
sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "Bundle"]
for name in [name for name in sys.modules if name.partition(".")[0] == "re"]:
    del sys.modules[name]
import re as anew
print(json.dumps({
    "from": type(turns.__spec__.loader).__name__,
    "file": turns.__file__,
    "word": getattr(signals, "WORD", None),
    "made": repr(Image(path="x")),
    "written": Image.__init__.__code__.co_filename,
    "bundled": len(bundled),
    "open": sum(os.path.realpath(f"/proc/self/fd/{name}").endswith(".bundle") for name in os.listdir("/proc/self/fd")),
    "re": "re._compiler" in bundled,
    "patterns": len(patterns),
    "other patterns": [each.pattern for each in patterns if anew.compile(each.pattern, each.flags) != each],
}))
"""


class Installation:
    """A copy of hpcml in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for package in ("hpcml", "hpcml_client"):
            shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
        unwanted = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")
        self.environ = {name: value for name, value in os.environ.items() if name not in unwanted}
        self.environ["PYTHONPATH"] = str(folder)

    def python(self, *words: str, **environ: str) -> str:
        argv = [sys.executable, "-P", *words]
        done = subprocess.run(
            argv, env={**self.environ, **environ}, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def look(self) -> dict[str, object]:
        found: dict[str, object] = json.loads(self.python("-c", LOOK))
        return found

    def refresh(self, **environ: str) -> str:
        return self.python("-c", "from hpcml.agent.bundle import refresh; print(refresh())", **environ).strip()

    @property
    def bundles(self) -> list[Path]:
        return sorted(self.folder.parent.rglob("*.bundle"))

    @property
    def commands(self) -> list[Path]:
        """The commands' bundles."""
        return sorted(self.folder.parent.rglob("*.commands"))

    def edit(self, *, by_exchange: bool) -> None:
        """Have hpcml.agent.signals say a word; *by_exchange* as an installer does it, else as an editor may."""
        module = self.folder / "hpcml" / "agent" / "signals.py"
        text = module.read_text() + "\nWORD = 'new'\n"
        if by_exchange:
            (module.parent / "draft").write_text(text)
            (module.parent / "draft").replace(module)
        else:
            module.write_text(text)
