"""The bundle from which agents start: it changes nothing but how fast, and is never older than what it was made of."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcml.bundled import MAGIC
from tests.agent.node import MakeRun, environ, told

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
Look = Callable[..., dict[str, object]]


class Installation:
    """A copy of hpcml in a folder of its own, with a place of its own for what Python compiles."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for package in ("hpcml", "hpcml_client"):
            shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
        unwanted = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")
        self.environ = {name: value for name, value in os.environ.items() if name not in unwanted}
        self.environ |= {"PYTHONPATH": str(folder), "PYTHONPYCACHEPREFIX": str(folder.parent / "compiled")}

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

    def edit(self, *, by_exchange: bool) -> None:
        """Have hpcml.agent.signals say a word; *by_exchange* as an installer does it, else as an editor may."""
        module = self.folder / "hpcml" / "agent" / "signals.py"
        text = module.read_text() + "\nWORD = 'new'\n"
        if by_exchange:
            (module.parent / "draft").write_text(text)
            (module.parent / "draft").replace(module)
        else:
            module.write_text(text)


@pytest.fixture(params=["checkout", "site-packages"])
def installation(request: pytest.FixtureRequest, tmp_path: Path) -> Installation:
    return Installation(tmp_path / request.param)


def test_what_an_agent_loads_is_the_same_from_a_bundle(tmp_path: Path) -> None:
    installation = Installation(tmp_path / "checkout")
    before = installation.look()
    assert installation.refresh() == "None"
    after = installation.look()

    assert before["from"] == "SourceFileLoader"
    assert before["bundled"] == 0
    assert after["from"] == "_Loader"
    assert isinstance(after["bundled"], int)
    assert after["bundled"] > 50
    assert after["re"]
    assert isinstance(after["patterns"], int)
    assert after["patterns"] > 20
    same = ("file", "made", "written", "word", "other patterns")
    assert [after[name] for name in same] == [before[name] for name in same]


def test_what_hardly_any_agent_uses_is_loaded_at_its_first_use_and_once(tmp_path: Path) -> None:
    installation = Installation(tmp_path / "checkout")
    installation.refresh()
    look = """
import sys, threading
from hpcml.bundled import use_bundle
use_bundle()
import pynvml
from hpcml.agent.nvml import inventory, reader, session
import hpcml.agent.telemetry.host as host

def is_loaded(module): return type(module).__name__ == "module"

before = is_loaded(pynvml), is_loaded(sys.modules["psutil"])
errors = []
def use():
    try: errors.append(pynvml.NVMLError is pynvml.NVMLError and host.psutil.Process().pid > 0)
    except BaseException as error: errors.append(error)
threads = [threading.Thread(target=use) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(before, errors == [True] * 8, is_loaded(pynvml), is_loaded(host.psutil),
      type(pynvml.__loader__).__name__, pynvml.__spec__.loader is pynvml.__loader__)
"""

    assert installation.python("-c", look).split() == ["(False,", "False)", "True", "True", "True", "_Loader", "True"]


def test_a_bundle_is_made_once_and_anew_where_anything_changed(installation: Installation) -> None:
    installation.refresh()
    (bundle,) = installation.bundles
    made = bundle.stat()
    installation.refresh()
    assert bundle.stat().st_mtime_ns == made.st_mtime_ns

    installation.edit(by_exchange=False)
    installation.refresh()

    assert bundle.stat().st_mtime_ns != made.st_mtime_ns
    assert (installation.look()["from"], installation.look()["word"]) == ("_Loader", "new")


def test_an_agent_takes_no_module_that_an_installer_has_exchanged(installation: Installation) -> None:
    installation.refresh()
    installation.edit(by_exchange=True)

    looked = installation.look()
    assert (looked["from"], looked["word"]) == ("SourceFileLoader", "new")
    assert looked["open"] == 0


def test_an_agent_takes_no_module_of_a_checkout_that_somebody_has_edited(tmp_path: Path) -> None:
    installation = Installation(tmp_path / "checkout")
    installation.refresh()
    installation.edit(by_exchange=False)

    assert installation.look()["word"] == "new"


@pytest.mark.parametrize("damage", [b"", b"something else", MAGIC, MAGIC + (99).to_bytes(8, "little") + b"{"])
def test_half_a_bundle_is_none(damage: bytes, tmp_path: Path) -> None:
    installation = Installation(tmp_path / "checkout")
    installation.refresh()
    (bundle,) = installation.bundles
    bundle.write_bytes(damage)

    assert installation.look()["from"] == "SourceFileLoader"
    installation.refresh()
    assert installation.look()["from"] == "_Loader"


def test_a_bundle_without_its_end_is_none(tmp_path: Path) -> None:
    """As a machine that crashes leaves a file, of which not all was on the disk."""
    installation = Installation(tmp_path / "checkout")
    installation.refresh()
    (bundle,) = installation.bundles
    bundle.write_bytes(bundle.read_bytes()[:-1])

    assert installation.look()["from"] == "SourceFileLoader"
    installation.refresh()
    assert installation.look()["from"] == "_Loader"


READS_ON = """
import sys
from hpcml.bundled import place_of_bundle, read_rest, use_bundle
use_bundle()
import hpcml.agent.turns, hpcml.agent.attempt, hpcml.agent.telemetry.host, os
is_open = place_of_bundle() in [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
WHAT
from hpcml.agent import ending
print(is_open, type(ending.__spec__.loader).__name__, ending.settle.__name__)
"""


@pytest.mark.parametrize(
    "what",
    [
        pytest.param("read_rest(); open(place_of_bundle(), 'w').close()", id="nothing is read after the rest was"),
        pytest.param("open(place_of_bundle(), 'w').close()", id="what is there no more comes from Python's own file"),
        pytest.param("os.unlink(place_of_bundle())", id="a new bundle in place of this one changes nothing"),
    ],
)
def test_what_is_loaded_later_does_not_depend_on_the_bundles_file(what: str, tmp_path: Path) -> None:
    installation = Installation(tmp_path / "checkout")
    installation.refresh()

    assert installation.python("-c", READS_ON.replace("WHAT", what)).split() == ["True", "_Loader", "settle"]


def test_a_bundle_of_another_python_is_none(tmp_path: Path) -> None:
    installation = Installation(tmp_path / "checkout")
    installation.refresh()
    (bundle,) = installation.bundles
    content = bundle.read_bytes()
    version = sys.version.encode()
    assert content.count(version) == 1
    bundle.write_bytes(content.replace(version, version[:-1] + b"?"))

    assert installation.look()["from"] == "SourceFileLoader"


def test_nothing_is_written_where_python_must_not_write_what_it_compiles(tmp_path: Path) -> None:
    installation = Installation(tmp_path / "checkout")

    assert installation.refresh(PYTHONDONTWRITEBYTECODE="1") == "None"

    assert not installation.bundles


def test_why_no_bundle_can_be_made_is_one_line(tmp_path: Path) -> None:
    installation = Installation(tmp_path / "checkout")
    module = installation.folder / "hpcml" / "agent" / "attempt.py"
    module.write_text("raise OSError(28, 'No space left on device')\n")

    assert installation.refresh() == "OSError: [Errno 28] No space left on device"
    assert not installation.bundles


def test_a_run_from_a_bundle_ends_as_one_without(make_run: MakeRun, tmp_path: Path) -> None:
    installation = Installation(tmp_path / "site-packages")
    installation.refresh()
    turns = installation.folder / "hpcml" / "agent" / "turns.py"
    turns.write_text(
        "raise SystemExit(9)\n"
    )  # in place, which an agent takes no notice of: it is the bundle's that runs
    run_dir = make_run("import sys; print('hello'); sys.exit(3)", "telemetry.interval=100ms")

    words = [sys.executable, "-P", "-m", "hpcml.agent.main", str(run_dir.path)]
    done = subprocess.run(words, env=environ(**installation.environ), timeout=60, check=False)

    assert done.returncode == 3
    assert run_dir.stdout(0, 0).read_text() == "hello\n"
    assert told(run_dir, "attempt_ended")[0]["reason"] == "exit status 3"
    assert told(run_dir, "telemetry")[0]["samples"] >= 2
