"""What the test suite costs: CPU and wall seconds by folder of `tests/`, each in one process, and its dearest tests.

CPU seconds (user and system, of all processes that the tests start, those that they leave behind too) are what to
compare: they hardly depend on what else the machine does. The sum divided by the cores is the least that a run of the
whole can take. Without words it measures all; with words, those folders or files. With --workers, each folder's tests
are divided among so many processes, as `make test` does, and what each of them has to do anew is counted:

python benchmarks/test_suite.py [--tests 10] [--workers 3] [tests/cli tests/model ...]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
_HOW = ["-q", "--no-header", "--durations=0", "--dist", "loadgroup"]
_GRACE_S = 15.0  # for what ends by itself soon after the tests
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h: what a test leaves behind becomes our child, so that we learn its cost


class CpuOfTests:
    """A plugin of pytest: how many CPU seconds each test took, with its fixtures and with processes that it awaited."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Take the time around a test."""
        begun = sum(os.times()[:4])
        try:
            return (yield)  # type: ignore[return-value]
        finally:
            self.seconds[item.nodeid] += sum(os.times()[:4]) - begun


def inside(paths: list[str], out: Path, workers: int) -> int:
    """Run the tests of *paths* in this process and write each one's CPU seconds to *out*."""
    recorded = CpuOfTests()
    code = pytest.main([*_HOW, "-n", str(workers), *paths], plugins=[recorded])
    out.write_text(json.dumps(recorded.seconds))
    return code


def _reap(ended: dict[int, tuple[int, float]], how: int) -> bool:
    """Note status and CPU seconds of children that ended; tell whether any are left."""
    try:
        pid, status, usage = os.wait4(-1, how)
    except ChildProcessError:
        return False
    ended[pid] = (status, ended.get(pid, (0, 0.0))[1] + usage.ru_utime + usage.ru_stime)
    return True


def measure(path: str, tests: int, workers: int) -> tuple[float, float]:
    """Run the tests of *path*, say what they cost, and return CPU and wall seconds."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "seconds.json"
        log = Path(folder) / "log"
        begun = time.monotonic()
        with log.open("w") as file:
            words = [sys.executable, __file__, "--inside", str(out), f"--workers={workers}", path]
            pid = subprocess.Popen(words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=file).pid
        ended = {0: (0, 0.0)}
        while pid not in ended:
            _reap(ended, 0)
        wall = time.monotonic() - begun
        give_up_at = time.monotonic() + _GRACE_S
        while time.monotonic() < give_up_at and _reap(ended, os.WNOHANG):
            time.sleep(0.1)
        code, cpu = os.waitstatus_to_exitcode(ended[pid][0]), sum(seconds for _, seconds in ended.values())
        last = (log.read_text().strip().splitlines() or [""])[-1]
        print(
            f"| {path} | {cpu:.0f} | {wall:.0f} | {last.strip('= ')}{f', exit code {code}' if code else ''} |",
            flush=True,
        )
        if keep := os.environ.get("TEST_SUITE_LOGS"):
            (Path(keep) / f"{path.replace('/', '_')}.log").write_text(log.read_text())
            (Path(keep) / f"{path.replace('/', '_')}.json").write_text(out.read_text() if out.exists() else "{}")
        seconds: dict[str, float] = json.loads(out.read_text()) if out.exists() else {}
        for name, took in sorted(seconds.items(), key=lambda pair: -pair[1])[:tests]:
            print(f"|   {name} | {took:.1f} | | |")
    return cpu, wall


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tests", type=int, default=0, help="how many of the dearest tests of each folder to list")
    parser.add_argument("--workers", type=int, default=0, help="how many processes divide the tests; 0: none does")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("paths", nargs="*")
    given = parser.parse_args()
    os.chdir(ROOT)
    if given.inside:
        sys.exit(inside(given.paths, given.inside, given.workers))
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    paths = given.paths or sorted(
        {f"tests/{path.relative_to(ROOT / 'tests').parts[0]}" for path in ROOT.glob("tests/**/test_*.py")}
    )
    print("| tests | CPU s | wall s | |\n|---|---|---|---|")
    costs = [measure(path, given.tests, given.workers) for path in paths]
    print(f"| all | {sum(cpu for cpu, _ in costs):.0f} | {sum(wall for _, wall in costs):.0f} | |")


if __name__ == "__main__":
    main()
