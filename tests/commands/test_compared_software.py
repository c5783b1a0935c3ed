"""Code and packages of runs, from run.json to what ``hpcml compare`` says of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hpcml.analysis.compare.result import ComparisonRequest
from hpcml.commands.compare import compare_runs
from hpcml.commands.selection import Selection
from hpcml.errors import ComparisonError
from hpcml.model.precision import PrecisionName
from hpcml.model.run import Precision
from hpcml.paths import Places
from hpcml.runs.layout import RunDir
from tests.store.building import make_run_dir

OLD, NEW = {"numpy": "1.26.4", "torch": "2.13.0", "pip": "25"}, {"numpy": "2.4.0", "torch": "2.13.0", "pip": "25"}


def ended(
    root: Path, precision: str, seed: int, *, code: str, packages: dict[str, str], modules: str | None = None
) -> RunDir:
    name = PrecisionName[precision]
    run_dir = make_run_dir(root, f"20260528-202640-{precision}{seed}", seed=seed, precision=Precision(name=name))
    told = json.loads(run_dir.manifest.read_text())
    told["provenance"] |= {"code": f"/home/ada/code/{code}", "packages": packages}
    run_dir.manifest.write_text(json.dumps(told))
    value = {"k": "m", "i": 9, "v": {"val_accuracy": 0.9 + seed / 99}}
    end = {"k": "e", "n": "attempt_ended", "d": {"state": "COMPLETED", "exit_code": 0, "wall_s": 1.0}}
    facts = {"k": "e", "n": "facts", "d": {} if modules is None else {"modules": modules}}
    for writer, said in (("rank0", [value]), ("agent", [facts, end])):
        header = {"hpcml": 1, "journal": f"0-{writer}", "run": run_dir.uid, "attempt": 0, "writer": writer, "host": "h"}
        lines = [{**header, "pid": 1, "t0": 1}, *({"s": s, "t": 1.0, **each} for s, each in enumerate(said))]
        (run_dir.journals / f"0-{writer}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run_dir


def compared(root: Path, *allow: str) -> list[str]:
    places = Places(home=root, store_url=f"sqlite:///{root}/store.db")
    found = compare_runs(places, Selection(), ComparisonRequest(allow=allow))
    return [str(each) for each in found.cells[0].confounders]


def test_an_edit_between_two_arms_is_refused_and_named(tmp_path: Path) -> None:
    for seed in range(3):
        ended(tmp_path / "runs", "fp32", seed, code="9656b3b6", packages=OLD)
        ended(tmp_path / "runs", "tf32", seed, code="650f005e", packages=OLD)

    with pytest.raises(ComparisonError, match=r"code: 650f005e \(3 runs: tf32\); 9656b3b6 \(3 runs: fp32\)"):
        compared(tmp_path)

    assert compared(tmp_path, "code") == ["code: 650f005e (3 runs: tf32); 9656b3b6 (3 runs: fp32)"]


def test_packages_that_differ_are_named_with_their_versions(tmp_path: Path) -> None:
    for seed in range(3):
        ended(tmp_path / "runs", "fp32", seed, code="9656b3b6", packages=OLD)
        ended(tmp_path / "runs", "tf32", seed, code="9656b3b6", packages=NEW)

    assert compared(tmp_path, "packages") == ["packages: numpy 1.26.4 (3 runs: fp32); numpy 2.4.0 (3 runs: tf32)"]


def test_modules_that_differ_are_refused_and_those_that_all_have_are_not_named(tmp_path: Path) -> None:
    old, new, none = "CUDA/11.8, GCC/12.3.0", "CUDA/12.1, GCC/12.3.0, MPI/4", None
    for folder, modules in (("changed", (old, new)), ("absent", (old, none)), ("alike", (old, old))):
        for seed in range(3):
            for precision, loaded in zip(("fp32", "tf32"), modules, strict=True):
                ended(tmp_path / folder / "runs", precision, seed, code="96", packages=OLD, modules=loaded)

    differing = "modules: CUDA/11.8 (3 runs: fp32); CUDA/12.1, MPI/4 (3 runs: tf32)"
    with pytest.raises(ComparisonError, match=re.escape(differing)):
        compared(tmp_path / "changed")

    assert compared(tmp_path / "changed", "modules") == [differing]
    assert compared(tmp_path / "absent", "modules") == [f"modules: {old} (3 runs: fp32); not recorded (3 runs: tf32)"]
    assert compared(tmp_path / "alike") == []
