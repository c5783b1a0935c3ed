from __future__ import annotations

import importlib.util
import math
import re
import subprocess
from pathlib import Path

import pytest
from pages import Shown, commands_of, files_of, on_path

from hpcml.runs.journal import Event, Metrics, read_journal


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The directory in which a reader types what a page shows."""
    folder = tmp_path / "reader"
    folder.mkdir()
    for page in ("your-own-program.md", "bring-your-program.md", "journal.md", "checkpoints.md"):
        for name, text in files_of(page).items():
            (folder / name).write_text(text, encoding="utf-8")
    return folder


def type_in(shown: Shown, place: Path, environ: dict[str, str]) -> None:
    """Run the command; every line that the page shows must come, in that order, its right end left open."""
    done = subprocess.run(
        ["bash", "-c", shown.command],
        cwd=place,
        env=on_path(environ),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    came = iter([flat(line) for line in done.stdout.splitlines()])
    for line in shown.lines:
        assert any(flat(line) in candidate for candidate in came), f"{line!r} is not in:\n{done.stdout}"


def flat(line: str) -> str:
    return re.sub(r"\s+", " ", line).strip()


def test_the_python_example_is_swept_and_compared_as_the_page_says(place: Path, hpcml_environ: dict[str, str]) -> None:
    commands = commands_of("your-own-program.md")

    type_in(commands["sweep"], place, hpcml_environ)
    type_in(commands["compare"], place, hpcml_environ)


def test_the_python_example_works_by_hand(place: Path, hpcml_environ: dict[str, str]) -> None:
    # by hand means: with hpcml installed, since it is outside of a run that puts its client on the path
    type_in(Shown(command="python fit.py", lines=()), place, hpcml_environ)

    assert not Path(hpcml_environ["HPCML_HOME"]).exists()


def test_a_sweep_of_a_programs_own_flags_is_compared_as_the_page_says(
    place: Path, hpcml_environ: dict[str, str]
) -> None:
    commands = commands_of("your-own-program.md")

    type_in(commands["flags"], place, hpcml_environ)
    type_in(commands["by-flag"], place, hpcml_environ)


def test_rules_pick_metrics_as_the_page_says(place: Path, hpcml_environ: dict[str, str]) -> None:
    commands = commands_of("your-own-program.md")

    type_in(commands["rules"], place, hpcml_environ)
    type_in(commands["picked"], place, hpcml_environ)


def test_the_torch_example_is_proven_as_the_page_says(place: Path, hpcml_environ: dict[str, str]) -> None:
    pytest.importorskip("torch", reason="the example trains with torch")
    commands = commands_of("your-own-program.md")

    type_in(commands["tiny"], place, hpcml_environ)
    type_in(commands["proven"], place, hpcml_environ)


def test_a_precision_reaches_the_flag_of_a_program_as_the_page_says(place: Path, hpcml_environ: dict[str, str]) -> None:
    type_in(commands_of("your-own-program.md")["mixed"], place, hpcml_environ)

    printed = Path(hpcml_environ["HPCML_HOME"]).glob("runs/mixed/*/logs/*.out")
    assert sorted(file.read_text() for file in printed) == ["computes with bf16\n", "computes with no\n"]


@pytest.mark.parametrize(("framework", "command"), [("jax", "tiny-jax"), ("tensorflow", "tiny-keras")])
def test_the_examples_of_other_frameworks_complete(
    place: Path, hpcml_environ: dict[str, str], framework: str, command: str
) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    type_in(commands_of("your-own-program.md")[command], place, hpcml_environ)


def test_a_program_that_prints_is_swept_and_compared_as_the_page_says(
    place: Path, hpcml_environ: dict[str, str]
) -> None:
    pytest.importorskip("torch", reason="the example trains with torch")
    commands = commands_of("bring-your-program.md")

    type_in(commands["plain"], place, hpcml_environ)
    type_in(commands["plain-compared"], place, hpcml_environ)
    type_in(commands["late"], place, hpcml_environ)
    type_in(commands["late-read"], place, hpcml_environ)


@pytest.mark.parametrize(
    ("command", "library", "steps", "last_steps"),
    [
        ("hf", "transformers", {"loss": [2, 4], "eval_loss": [4]}, [4]),
        ("accelerated", "accelerate", {"loss": [0, 10, 20], "val/acc": [0, 10, 20]}, []),
        ("lit", "lightning", {"train_loss": [1, 3, 5, 7], "val_loss": [3, 7]}, []),
        ("kerasfit", "keras", {"loss": [0, 1, 2], "val_loss": [0, 1, 2]}, [2]),
        ("logged", "hpcml_client", {"train/loss": [0, 1, 2], "epoch": [0, 1, 2], "best": [3]}, []),
    ],
)
def test_each_framework_reports_as_the_page_says(
    place: Path,
    hpcml_environ: dict[str, str],
    command: str,
    library: str,
    steps: dict[str, list[int]],
    last_steps: list[int],
) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")

    type_in(commands_of("bring-your-program.md")[command], place, {**hpcml_environ, "HF_HUB_OFFLINE": "1"})

    found: dict[str, list[int]] = {}
    said: list[object] = []
    for path in Path(hpcml_environ["HPCML_HOME"]).glob(f"runs/{command}/*/journal/*-rank0.jsonl"):
        for record in read_journal(path).records:
            if isinstance(record, Metrics):
                for name in record.values:
                    found.setdefault(name, []).append(record.step)
            elif record.name == "training":
                said.append(record.details["steps"])
    assert {name: found.get(name) for name in steps} == steps
    assert said == last_steps


def test_the_bash_writer_writes_a_journal_that_hpcml_reads(place: Path, hpcml_environ: dict[str, str]) -> None:
    type_in(commands_of("journal.md")["report"], place, hpcml_environ)

    (written,) = Path(hpcml_environ["HPCML_HOME"]).glob("runs/bash/*/journal/*-rank0.jsonl")
    chunk = read_journal(written)
    assert chunk.header is not None
    assert chunk.header.run == written.parent.parent.name
    assert (chunk.header.attempt, chunk.header.writer) == (0, "rank0")
    assert chunk.bad_lines == 0
    assert [record.seq for record in chunk.records] == list(range(12))
    *metrics, undefined, note = chunk.records
    assert [(m.step, m.values) for m in metrics if isinstance(m, Metrics)] == [
        (step, {"loss": (100 - step) / 100}) for step in range(1, 11)
    ]
    assert isinstance(undefined, Metrics)
    assert math.isnan(undefined.values["loss"])
    assert isinstance(note, Event)
    assert note.details == {"text": "written by Bash"}
    type_in(
        Shown(command="hpcml sync", lines=("1 runs, 11 new points, 0 unreadable lines",)), place, fresh(hpcml_environ)
    )


def test_the_checkpoint_example_ends_with_the_weights_of_an_uninterrupted_run(
    place: Path, hpcml_environ: dict[str, str]
) -> None:
    pytest.importorskip("torch", reason="the example trains with torch")
    commands = commands_of("checkpoints.md")
    whole = last_line("python goes_on.py", place, hpcml_environ)
    assert not (place / "checkpoints").exists()

    type_in(commands["warned"], place, hpcml_environ)
    assert len(list((place / "checkpoints").iterdir())) == 1
    shown = Shown(command=commands["resumed"].command, lines=(commands["resumed"].lines[0], whole))
    type_in(shown, place, hpcml_environ)


def test_the_bash_example_goes_on_where_it_was_stopped(place: Path, hpcml_environ: dict[str, str]) -> None:
    type_in(commands_of("checkpoints.md")["counted"], place, hpcml_environ)


def last_line(command: str, place: Path, environ: dict[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=place,
        env=on_path(environ),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return done.stdout.splitlines()[-1]


def fresh(environ: dict[str, str]) -> dict[str, str]:
    """Return *environ* with a store that nobody has read the run into yet."""
    return {**environ, "HPCML_STORE": str(Path(environ["HOME"]) / "fresh.db")}


def test_the_journal_pages_examples_are_lines_that_hpcml_reads(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "journal.md").read_text(encoding="utf-8")
    lines = re.findall(r"```json\n(.*?)\n```", text)
    journal = tmp_path / "page.jsonl"
    journal.write_text("\n".join(lines) + "\n", encoding="utf-8")

    chunk = read_journal(journal)

    assert chunk.header is not None
    assert (chunk.lines, chunk.bad_lines) == (3, 0)
    assert [record.seq for record in chunk.records] == [17, 18]
