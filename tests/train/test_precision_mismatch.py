from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

import hpcml_client
from hpcml.model.failure_causes import Cause, classify, ended_because
from hpcml.model.state import State
from hpcml.runs.journal import Event, read_journal

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("torch_as_found")]
WORDS = "precision=tf32 was asked for, but fp32 was measured on cpu"


def _connected(folder: Path, **precision: str) -> hpcml_client.Client:
    """Return the client of a run of TF32 whose plan says native on a CPU, which has no such units."""
    config = folder / "run.json"
    run = {"precision": {"name": "tf32", **precision}}
    config.write_text(json.dumps({"run": run, "plan": {"device": "cpu", "numerics": "native"}}))
    return hpcml_client.connect({"HPCML_RUN_DIR": str(folder), "HPCML_CONFIG": str(config)})


def _events(folder: Path) -> dict[str, dict[str, object]]:
    (path,) = (folder / "journal").iterdir()
    return {event.name: dict(event.details) for event in read_journal(path).records if isinstance(event, Event)}


def test_a_device_that_computes_in_another_precision_ends_the_program_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended, _connected(tmp_path) as run:
        run.apply_precision("torch")

    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said == f"hpcml_client: ended, because {WORDS}\n"
    assert ended_because(said) == WORDS
    proof = _events(tmp_path)["precision"]
    assert (proof["requested"], proof["effective"], proof["mismatch"]) == ("tf32", "fp32", True)


def test_with_warn_it_goes_on_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with _connected(tmp_path, on_mismatch="warn") as run:
        arithmetic = run.apply_precision("torch")

    said = capsys.readouterr().err
    assert arithmetic.precision == "tf32"
    assert said == f"hpcml_client: goes on, although {WORDS}\n"
    assert ended_because(said) is None
    events = _events(tmp_path)
    assert events["note"]["text"] == WORDS
    assert events["precision"]["mismatch"] is True


def test_what_was_asked_for_is_no_mismatch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with hpcml_client.connect({"HPCML_RUN_DIR": str(tmp_path), "HPCML_PRECISION": "fp8_e4m3"}) as run:
        run.apply_precision("torch")

    proof = _events(tmp_path)["precision"]
    assert (proof["effective"], proof["mismatch"], proof["numerics"]) == ("fp8_e4m3", False, "emulated")
    assert capsys.readouterr().err == ""


def test_outside_of_a_run_a_mismatch_is_told_and_nothing_ends(capsys: pytest.CaptureFixture[str]) -> None:
    plan = {"plan": {"device": "cpu", "numerics": "native"}}
    with hpcml_client.Client(config=plan, precision="tf32") as run:
        run.apply_precision("torch")

    assert capsys.readouterr().err == f"hpcml_client: goes on, although {WORDS}\n"


def test_the_line_is_the_cause_and_the_line_of_one_that_went_on_is_not() -> None:
    def cause(line: str) -> Cause:
        return classify(State.FAILED, reason=None, exit_code=2, signal=None, log_tail=f"step 1\n{line}\n")

    assert cause(f"hpcml_client: ended, because {WORDS}") is Cause.PRECISION_MISMATCH
    assert cause(f"hpcml_client: goes on, although {WORDS}") is Cause.PROGRAM
