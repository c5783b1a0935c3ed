"""The bundle from which agents start: it changes nothing but how fast, and is never older than what it was made of."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hpcml.bundled import MAGIC
from tests.agent.installation import Installation
from tests.agent.node import MakeRun, environ, told


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


def test_what_is_set_in_a_module_before_its_first_use_stays(tmp_path: Path) -> None:
    installation = Installation(tmp_path / "checkout")
    installation.refresh()
    look = """
from hpcml.bundled import use_bundle
use_bundle()
import pynvml, tempfile
before = type(pynvml).__name__, type(tempfile).__name__
pynvml.nvmlLib = "mine"
del tempfile.tempdir
print(before, pynvml.nvmlLib, hasattr(tempfile, "tempdir"))
"""

    assert installation.python("-c", look).strip() == "('_Unused', '_Unused') mine False"


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
    assert told(run_dir, "attempt_ended")[0]["reason"] == "exit status 3; last line: hello"
    assert told(run_dir, "telemetry")[0]["samples"] >= 2


READS_ON = """
import sys
from hpcml.bundled import place_of_bundle, read_rest, use_bundle
use_bundle()
import hpcml.agent.turns, hpcml.agent.attempt, hpcml.agent.telemetry.host, os
is_open = place_of_bundle() in [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
WHAT
from hpcml.agent import staging, ending  # the one is read by itself until the program starts, the other is not
print(is_open, type(ending.__spec__.loader).__name__, ending.settle.__name__, staging.make_ready.__name__)
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

    assert installation.python("-c", READS_ON.replace("WHAT", what)).split() == [
        *("True", "_Loader", "settle", "make_ready")
    ]


def test_the_rest_is_read_once_whoever_asks_at_the_same_time(tmp_path: Path) -> None:
    installation = Installation(tmp_path / "hpcml-source")
    installation.refresh()

    said = installation.python(
        "-c",
        """
import os, threading, time
from hpcml.bundled import Bundle, place_of_bundle
bundle = Bundle(place_of_bundle())
closed, errors, pread, close = [], [], os.pread, os.close
def read_slowly(*words):
    time.sleep(0.2)
    return pread(*words)
def close_noted(file):
    closed.append(file)
    close(file)
def ask():
    try: bundle.read_rest()
    except OSError as error: errors.append(error)
os.pread, os.close = read_slowly, close_noted
threads = [threading.Thread(target=ask) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(closed), errors)
""",
    )

    assert said == "1 []\n"
