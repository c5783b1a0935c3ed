"""Nothing that a run directory may hold ends a command otherwise than in one line, or makes it wait, for good or once.

Files of runs, submissions and images are damaged at random; then commands are asked, and the undamaged runs must be in
their answers. What is left out is said.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from hpcml.agent import history
from hpcml.cli.main import cli
from hpcml.codec import decode
from hpcml.commands.follow import Watcher
from hpcml.commands.logs import last_words, log_tail
from hpcml.commands.submit.submission import manifests_under_way
from hpcml.errors import HpcmlError
from hpcml.images.cache import Cache
from hpcml.model.precision import PrecisionName
from hpcml.model.run import Precision
from hpcml.runs import dependency
from hpcml.runs.layout import RunDir
from hpcml.runs.manifest import read_manifest
from hpcml.runs.state import read_fold
from hpcml.schedulers.local.jobs import QueuedBatch, is_queued, new_file, write_batch
from hpcml.schedulers.local.waiting import left_by_killed
from tests.effort import times
from tests.store.building import Journal, make_run_dir

WHOLE = [f"20260528-202640-whole{name}" for name in "abcd"]
ENDED, RUNNING, WAITING = (f"20260528-202640-{name}" for name in ("damaged", "running", "waiting"))
PATIENCE_S = 300
KEY = "0" * 32


def a_home(home: Path) -> None:
    runs = home / "runs"
    for at, uid in enumerate([*WHOLE, ENDED, RUNNING, WAITING]):
        name = PrecisionName.fp32 if at % 2 else PrecisionName.tf32
        run_dir = make_run_dir(
            runs, uid, precision=Precision(name=name), seed=at // 2, submission="20260528-202640-sub"
        )
        Journal(run_dir, writer="launch", attempt=0).event("submitted", scheduler="local", job_id="l-9-4711")
        if uid == WAITING:
            continue
        agent = Journal(run_dir, writer="agent", attempt=0)
        told = {"hostname": socket.gethostname(), "pid": 2**30, "create_time": 1.5, "start_ticks": 7, "boot_id": ""}
        agent.event("attempt_started", 1.0, node=0, **told)
        agent.event("facts", 1.0, gpu_model="NVIDIA A100-SXM4-40GB", hostname="node7", torch="2.9.0")
        rank = Journal(run_dir, writer="rank0", attempt=0)
        for step in range(8):
            rank.metrics(step, step / 10, val_accuracy=0.5 + step / 100 + at / 1000, loss=1 / (step + 1), step_s=0.1)
        rank.event("checkpoint", 0.7, step=7, path="checkpoints/7")
        rank.event("work", 0.7, devices=1, model_flops=1e9, samples=64)
        sampler = Journal(run_dir, writer="node0", attempt=0, folder="telemetry")
        for second in range(12):
            sampler.metrics(
                second, second, **{"gpu0.at_s": second, "gpu0.power_w": 90.0, "gpu0.energy_j": 90.0 * second}
            )
        run_dir.logs.mkdir()
        run_dir.stdout(0, 0).write_text("step 1\nstep 2\n")
        run_dir.stderr(0, 0).write_text("a warning\n")
        if uid != RUNNING:
            agent.event("telemetry", 2.0, node=0, wall_s=12.0, gpu0_energy_j=990.0, gpu0_energy_covered_s=12.0)
            agent.event("attempt_ended", 2.0, state="COMPLETED", exit_code=0, wall_s=12.5)
        Journal(run_dir, writer="user", attempt=0).event("noted", 3.0, text="a note", author="ada")
        (run_dir.path / "retries").mkdir()
        shutil.copy(run_dir.manifest, run_dir.retry_manifest(1))
        run_dir.code.symlink_to(home)
    folder = home / "submissions" / "20260528-202640-sub"
    folder.mkdir(parents=True)
    (folder / "ended.json").write_text("[0]")
    batch = {"jobs": [], "max_parallel": None, "runtime": "/tmp/x", "environ": {}}  # noqa: S108 - a text
    write_batch(new_file(folder.parent, folder.name), decode(QueuedBatch, batch | {"pool": {"cores": 1, "gpus": []}}))
    (home / "submissions" / "open").mkdir()
    intent = {"submission": "s", "host": "h", "batches": [], "run_dirs": [str(runs / "default" / "gone")]}
    (home / "submissions" / "open" / "20260528-202640-sub2.planning.-.0.0.json").write_text(json.dumps(intent))
    images = home / "images"
    images.mkdir()
    words = ("path", "sha256", "definition", "base", "base_digest", "architecture", "builder", "built_on", "runtime")
    record = dict.fromkeys(words, "x") | {"size_bytes": 1, "mtime_ns": 1, "build_s": 1.5}
    record |= {"key": KEY, "built_at": "2026-05-28T20:26:40+00:00", "labels": {}, "format": 1}
    (images / f"{KEY}.json").write_text(json.dumps(record))
    (images / f"{KEY}.sif").write_bytes(b"x")


def damaged_files(home: Path) -> list[Path]:
    """Return all that may be damaged; folders as well."""
    places = [home / "runs" / "default" / uid for uid in (ENDED, RUNNING, WAITING)]
    files = [path for place in places for path in place.rglob("*") if not path.is_symlink() or path.name == "code"]
    return sorted([*files, *(home / "submissions").rglob("*.json"), *(home / "images").glob("*.json")])


WORDS: list[str] = [
    *(
        "null",
        "true",
        "false",
        '""',
        '"x"',
        '"\\ud800"',
        '"\\u0000"',
        '"\\u001b[2J"',
        "-1",
        "0",
        "1",
        "1e999",
        "-1e999",
    ),
    *("NaN", "Infinity", "1e308", "1e-320", "9" * 25, "9" * 400, "-" + "9" * 25, "2147483648", "9223372036854775808"),
    *("[]", "{}", "[[1]]", '[["a", 1], [2, 3]]', '{"a": {"b": 1}}', '"../../../../etc/passwd"', '"/"', '"0001-01-01"'),
    *('"9999-12-31T23:59:59-23:59"', '"2026-11-21 08:30"', '"yesterday"', '"COMPLETED"', '"FAILED"', '"user"'),
    *("[" * 200 + "]" * 200, '{"a":' * 150 + "1" + "}" * 150, json.dumps("x" * 5000), "-62135596801", "253402300800"),
    *(json.dumps(WHOLE[0]), '"rank0"', '"agent1"', '"slurm"', "1.5", "-0.0", "-1e999", "[null]", "[1, true, null]"),
]


def places_in(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:  # noqa: ANN401
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield (*place, key)
        yield from places_in(part, (*place, key))


def swapped(text: str, chance: random.Random) -> str:
    """Return the JSON *text* with another value, no value or two values at one of its places."""
    value = json.loads(text)
    if not isinstance(value, dict):
        return text
    value.pop("c", None)
    place = chance.choice(list(places_in(value)))
    holder = value
    for key in place[:-1]:
        holder = holder[key]
    kind = chance.randrange(8)
    if kind == 0:
        del holder[place[-1]]
    elif kind == 1 and isinstance(holder, dict):
        holder["unheard of"] = 1
    else:
        holder[place[-1]] = "@here@"
    again = '"@here@"' if kind != 2 or not isinstance(holder, dict) else f'1, {json.dumps(place[-1])}: "@here@"'
    return json.dumps(value).replace('"@here@"', again).replace('"@here@"', chance.choice(WORDS))


def change_bytes(path: Path, chance: random.Random) -> None:
    content = bytearray(path.read_bytes() or b"x")
    at, much = chance.randrange(len(content)), chance.choice([1, 2, 30, 500])
    kind = chance.randrange(5)
    if kind == 0:
        for _ in range(chance.choice([1, 4, 40])):
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    elif kind == 1:
        del content[at:]
    elif kind == 2:
        content[at : at + much] = b"\0" * much
    elif kind == 3:
        content[at:at] = chance.randbytes(much)
    else:
        content[at:at] = chance.choice([b"[", b'{"a":', b"\n", b"\xff"]) * chance.choice([1, 3000])
    path.write_bytes(content)


def change_json(path: Path, chance: random.Random) -> None:
    if path.suffix not in (".json", ".jsonl"):
        change_bytes(path, chance)
        return
    try:
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        for _ in range(chance.choice([1, 1, 1, 3])):
            at = chance.randrange(len(lines))
            lines[at] = swapped(lines[at], chance)
    except (ValueError, IndexError, RecursionError):  # it was damaged before, and is no JSON any more
        change_bytes(path, chance)
        return
    path.write_text("".join(f"{line}\n" for line in lines))


def replace_it(path: Path, chance: random.Random) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    kind = chance.randrange(9)
    if kind == 0:
        path.mkdir()
    elif kind == 1:
        os.mkfifo(path)
    elif kind == 2:
        path.symlink_to(chance.choice(["/dev/zero", "/dev/tty", "/etc/passwd", "/", "nowhere", path.name, ".."]))
    elif kind == 3:
        path.write_bytes(b"")
    elif kind == 4:
        path.write_bytes(b"\n" * 3)
    elif kind == 5:
        with socket.socket(socket.AF_UNIX) as bound:
            here = Path.cwd()
            os.chdir(path.parent)
            try:
                bound.bind(path.name[:90])
            finally:
                os.chdir(here)
    elif kind == 6:
        with path.open("wb") as file:
            file.truncate(20 << 30)
    elif kind == 7:
        path.write_bytes(b"x" * (5 << 20))


def damage(home: Path, chance: random.Random) -> str:
    """Damage one file or folder; return which, and how."""
    path = chance.choice(damaged_files(home))
    is_small = path.is_file() and path.stat().st_size < 64 << 20  # else it is a hole already, and not to be read whole
    if path.is_symlink() or not is_small or chance.random() < 0.2:
        replace_it(path, chance)
        return f"{path} replaced"
    change = chance.choice([change_bytes, change_json, change_json])
    change(path, chance)
    return f"{path} {change.__name__}"


QUESTIONS: list[list[str]] = [
    *(["runs"], ["runs", "--csv"], ["runs", "--md"], ["status"], ["status", "--json"], ["sync"], ["images", "--json"]),
    *(["show", ENDED], ["show", RUNNING, "--json"], ["show", WAITING], ["logs", ENDED], ["logs", "--err", ENDED]),
    *(["compare", "--allow", "seed"], ["compare", "--json"], ["scaling"], ["peak"], ["peak", "--json"]),
    *(["runs", "--best", "val_accuracy"], ["show", ENDED, "--curve", "loss"], ["diff", ENDED, WHOLE[0], "--all"]),
    *(["query", "SELECT * FROM runs", "--json"], ["query", "SELECT * FROM points"], ["top", "--once", "--json"]),
    *(["report", "report.html"], ["report", "report.md"], ["rm", "--dry-run", ENDED], ["runs", "--where", "age<1d"]),
    *(["cancel", "-y", RUNNING], ["cancel", "-y", WAITING, ENDED], ["cancel", "-y", "--state", "running"]),
    *(["retry", "-n"], ["retry", "-n", RUNNING, ENDED], ["retry", "-n", "--walltime", "8h", WAITING]),
    *(["export", form, "--to", form] for form in ("csv", "json", "parquet", "rocrate")),
    *(["top", "--once", RUNNING], ["runs", "--columns", "gpu_model,usage.energy_kwh,loss,torch", "--sort", "loss"]),
]


def ask(home: Path, *words: str) -> Result:
    """Ask a command; whatever happens but an answer or an expected error is raised."""
    result = CliRunner().invoke(cli, ["--home", str(home), *words], standalone_mode=False)
    if result.exception is not None and not isinstance(
        result.exception, (HpcmlError, click.ClickException, SystemExit)
    ):
        raise result.exception
    if isinstance(result.exception, HpcmlError):
        assert "\n" not in str(result.exception)
    return result


def read_directly(home: Path) -> None:
    """Read as the agent, `hpcml logs` and others do, without the store."""
    for uid in (ENDED, RUNNING, WAITING):
        run_dir = RunDir(home / "runs" / "default" / uid)
        if not run_dir.path.is_dir():
            continue
        manifests = [run_dir.manifest, run_dir.retry_manifest(1)]
        asked: list[Callable[[], object]] = [lambda path=path: read_manifest(path) for path in manifests]  # type: ignore[misc]
        asked += [Watcher(run_dir).look, lambda: last_words(run_dir), lambda: log_tail(run_dir)]  # noqa: B023
        asked += [lambda: history.last_checkpoint(run_dir)]  # noqa: B023
        asked += [lambda: read_fold(run_dir), lambda: dependency.look(f"afterok:{uid}", home / "runs")]  # noqa: B023
        folder = home / "submissions" / "20260528-202640-sub"
        asked += [lambda: is_queued(folder.parent, folder.name, 0), lambda: left_by_killed(folder.parent)]  # noqa: B023
        asked += [lambda: manifests_under_way(folder.parent / "open"), Cache(home / "images").records]  # noqa: B023
        for question in asked:
            with suppress(HpcmlError):
                question()


@pytest.mark.parametrize("place", ["retries", "retries/1.sh"])
def test_a_run_that_cannot_be_tried_again_is_told_in_one_line(tmp_path: Path, place: str) -> None:
    a_home(tmp_path)
    run = tmp_path / "runs" / "default" / RUNNING
    path = run / place
    shutil.rmtree(run / "retries")
    path.touch() if place == "retries" else path.mkdir(parents=True)

    refused = ask(tmp_path, "retry", "-y", RUNNING)

    assert isinstance(refused.exception, HpcmlError)
    assert str(refused.exception).startswith(f"run {RUNNING} cannot be tried again: {path}")


def test_a_journal_that_is_a_link_to_nothing_is_none(tmp_path: Path) -> None:
    a_home(tmp_path)
    run_dir = RunDir(tmp_path / "runs" / "default" / ENDED)
    link = run_dir.journals / "0-node7-user.jsonl"
    link.unlink()
    link.symlink_to("nowhere")

    assert Watcher(run_dir).look().is_over
    assert link not in run_dir.journal_files()


@pytest.fixture
def _within_patience() -> Iterator[None]:
    def ring(_number: int, _frame: FrameType | None) -> None:
        raise TimeoutError("a reader waits for a file")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(times(PATIENCE_S, 100 * PATIENCE_S))
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("_within_patience")
@pytest.mark.parametrize("part", range(4))
def test_whatever_a_run_directory_holds_every_command_answers_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, part: int
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HPCML_IMAGES", str(tmp_path / "home" / "images"))
    a_home(tmp_path / "whole")
    home = tmp_path / "home"
    shutil.copytree(tmp_path / "whole", home, symlinks=True)
    for number in range(times(10, 2500)):
        chance = random.Random(f"{part}-{number}")  # noqa: S311
        for folder in ("runs", "submissions", "images"):
            shutil.rmtree(home / folder)
            shutil.copytree(tmp_path / "whole" / folder, home / folder, symlinks=True)
        done = [damage(home, chance) for _ in range(chance.choice([1, 1, 2]))]
        caplog.clear()
        try:
            found = ask(home, "runs", "--json")
            ask(home, *chance.choice(QUESTIONS))
            read_directly(home)
            known = {run["uid"] for run in json.loads(found.stdout)}
            assert known.issuperset(WHOLE)
            assert known.issuperset((ENDED, RUNNING, WAITING)) or "not read for this answer" in caplog.text
        except Exception as error:
            raise AssertionError(f"part {part}, {number}: {done}") from error
