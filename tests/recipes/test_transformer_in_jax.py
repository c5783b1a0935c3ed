"""The transformer in JAX: the same network and steps as in torch, and a loop that keeps its promises."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from image_runs import Recorded
from language_runs import DRAWS, SAYS, SQUARES, assert_it_continues
from numeric_runs import ROOT, assert_it_went_on_bit_for_bit, config_of, run_all

from hpcml_client.formats import name_precision
from tests.cli.command_line import Hpcml, said_in_one_line

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        importlib.util.find_spec("jax") is None or importlib.util.find_spec("torch") is None,
        reason="JAX or torch is not installed",
    ),
]

STEPS = 6
SMALL = {"layers": 1, "width": 32, "heads": 2, "feed_forward": 64, "context": 32, "validation_windows": 8}
KINDS = ("decoder", "encoder", "encoder_decoder")
# largest relative difference of the first loss to that of FP32: same weights, same windows
PRECISIONS = {"fp32": 1e-12, "amp_fp16": 1e-4, "bf16": 2e-3}
# Trains the torch model from JAX' first weights by torch's own means, and says each loss and the validation.
TORCH = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
import batches, jax_models, torch, training
from hpcml_client import connect
from hpcml_train.task import Task
from hpcml_train.progress import sample_orders
from hpcml_train.torch.flops import count_step
told = {}
for run_dir in sys.argv[2:]:
    with connect({"HPCML_RUN_DIR": run_dir + "-torch", "HPCML_CONFIG": run_dir + "/run.json"}) as run:
        task = Task.from_config(run.config)
        arithmetic = run.apply_precision("torch")
        recipe = training.LanguageModelling(task, arithmetic)
        first = jax_models.first_weights(training.Shape(**task.options), task.seed)
        model, orders = recipe.model.double(), sample_orders(recipe.samples, task)
        drawn = batches.Batches(task, training.Shape(**task.options))  # windows in the order of JAX, hidden as there
        def as_torch(batch):
            return tuple(torch.tensor(part).long() for part in batch)
        recipe.validation = lambda: map(as_torch, drawn.validation())
        missing = model.load_state_dict({name: torch.tensor(value) for name, value in first.items()}, strict=False)
        assert (missing.missing_keys, missing.unexpected_keys) == (["head.weight"], []), missing  # the embedding's
        optimizer, losses = torch.optim.Adam(model.parameters(), lr=task.learning_rate), []
        for _ in range(task.steps):
            batch = as_torch(drawn.training(next(orders)))
            loss = recipe.loss(model, batch)
            optimizer.zero_grad(); loss.backward(); optimizer.step()
            losses.append(loss.item())
        with torch.no_grad():
            told[run_dir] = {"loss": losses, **recipe.evaluate(model.eval()), **recipe.facts()}
        told[run_dir]["model_flops"] = count_step(model, batch, recipe.loss).flops
print(json.dumps(told), flush=True)
os._exit(0)
"""


def config(folder: Path, precision: str, *, options: Mapping[str, object] = {}, **training: object) -> dict[str, Any]:
    wanted = {"steps": STEPS, "batch_size": 8, "learning_rate": 3e-3, "eval_every": 3, "deterministic": True}
    return config_of(
        "transformer_tiny",
        precision,
        "jax",
        options={**SMALL, **options},
        data={"name": "text", "path": str(folder / "text.txt"), "holdout": 0.2},
        training={**wanted, **training},
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("jax")
    (folder / "text.txt").write_text(SQUARES)
    return folder


@pytest.fixture(scope="module", autouse=True)
def _compiled_quickly() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0")  # half the time
        yield


@pytest.fixture(scope="module")
def runs(folder: Path) -> dict[str, Recorded]:
    configs = {name: config(folder, name) for name in PRECISIONS}
    configs |= {kind: config(folder, "fp64", options={"kind": kind, "layers": 2}, accumulate=2) for kind in KINDS}
    configs["left out"] = config(folder, "amp_fp16", options={"dropout": 0.1}, accumulate=2)
    knows = {"steps": 200, "batch_size": 16, "learning_rate": 5e-3, "eval_every": 200}
    says = {"context": 24}
    configs["said"] = config(folder, "fp32", options={**says, **SAYS}, **knows)
    configs["drawn"] = config(folder, "fp32", options={**says, **DRAWS})
    return run_all(folder, "transformer::jax_training", configs, left={"left out": 2})


@pytest.fixture(scope="module")
def in_torch(folder: Path, runs: dict[str, Recorded]) -> dict[str, dict[str, Any]]:
    """What torch makes of the same weights and configurations, by the kind of the model."""
    assert runs
    done = subprocess.run(
        [sys.executable, "-c", TORCH, str(ROOT / "recipes" / "transformer"), *(str(folder / kind) for kind in KINDS)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return {Path(name).name: told for name, told in found.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_from_the_same_weights_it_goes_where_torch_goes(
    runs: dict[str, Recorded], in_torch: dict[str, dict[str, Any]], kind: str
) -> None:
    found, torch = runs[kind], in_torch[kind]

    # forward and backward pass, and Adam: FP64, batches in two parts
    assert found.series("loss") == pytest.approx(torch["loss"], rel=1e-12)
    for name in ("val_loss", "perplexity", "val_accuracy"):
        assert found.series(name)[-1] == pytest.approx(torch[name], rel=1e-12)
    for name in ("training_samples", "validation_samples", "text_bytes", "text_sha256"):
        assert found.events["training"][name] == torch[name]


@pytest.mark.parametrize("kind", KINDS)
def test_it_counts_the_operations_that_torch_counts(
    runs: dict[str, Recorded], in_torch: dict[str, dict[str, Any]], kind: str
) -> None:
    work, context, windows, width, layers = runs[kind].events["work"], 32, 8, 32, 2

    # torch may compute the products of its fused attention once more; of an encoder_decoder each half sees 16 tokens
    pairs = {"decoder": layers * context**2, "encoder": layers * context**2, "encoder_decoder": 3 * (context // 2) ** 2}
    again = windows * 2 * pairs[kind] * width
    assert in_torch[kind]["model_flops"] - work["model_flops"] in (0, again)
    assert (work["flops_method"], work["flops_doubt"], work["tokens"]) == ("jaxpr", None, 8.0 * 32)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_each_precision_begins_where_fp32_does_and_learns(runs: dict[str, Recorded], precision: str) -> None:
    exact, found = runs["fp32"], runs[precision]

    probe, losses = found.events["precision"], found.series("loss")
    assert name_precision(probe["products"], probe["parameters"]) == precision
    assert losses[0] == pytest.approx(exact.series("loss")[0], rel=PRECISIONS[precision])
    assert losses[0] == pytest.approx(math.log(257), rel=0.02)  # it knows nothing yet
    assert losses[-1] < losses[0] - 0.5
    assert (losses == exact.series("loss")) == (precision == "fp32")


def test_it_reports_what_the_torch_half_reports(runs: dict[str, Recorded]) -> None:
    found = runs["fp32"]

    assert set(found.events) == {"framework", "precision", "training", "work", "memory", "final", "closed"}
    assert [record.step for record in found.metrics] == list(range(1, STEPS + 1))
    assert set(found.metrics[0].values) == {"loss", "step_time_s", "data_time_s"}
    assert [record.step for record in found.metrics if "val_loss" in record.values] == [3, 6]
    assert set(runs["amp_fp16"].metrics[0].values) > {"loss_scale", "skipped_steps", "overflowed_gradients"}
    assert found.events["memory"]["peak_allocated_mb"] is None


def test_a_training_that_left_ends_with_the_same_weights_bit_for_bit(runs: dict[str, Recorded]) -> None:
    assert_it_went_on_bit_for_bit(runs, "left out")


def test_a_trained_decoder_continues_a_text(runs: dict[str, Recorded]) -> None:
    assert_it_continues(runs["said"], runs["drawn"])


@pytest.mark.parametrize(
    ("options", "training", "status", "says"),
    [
        ({}, {"learning_rate": 1e30}, 1, "hpcml_client: ended, because loss is nan at step 2 and the 2 after it: "),
        ({"width": 1 << 40}, {}, 1, "hpcml_client: ended, because out of memory (Unable to allocate "),
        ({}, {"accumulate": 3}, 2, "transformer: training.accumulate=3 does not divide the 8 samples of a process"),
        ({"heads": 3}, {}, 2, "transformer: model.options.heads=3 does not divide model.options.width=32"),
    ],
)
def test_a_training_that_cannot_go_on_says_why_in_one_line(
    folder: Path, tmp_path: Path, options: Mapping[str, object], training: Mapping[str, object], status: int, says: str
) -> None:
    (tmp_path / "run.json").write_text(json.dumps(config(folder, "fp32", options=options, **training)))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HPCML_", "SLURM_"))}

    done = subprocess.run(
        [sys.executable, str(ROOT / "recipes" / "transformer" / "train.py")],
        env={**kept, "HPCML_RUN_DIR": str(tmp_path), "HPCML_CONFIG": str(tmp_path / "run.json")},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )

    assert done.returncode == status, done.stderr
    assert done.stderr.startswith(says)
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["precision=fp8_e4m3"], "precision=fp8_e4m3"),
        (["training.compile=true"], "training.compile=true is torch's"),
        (["strategy=ddp", "strategy.processes_per_node=2"], "strategy=ddp is nothing of jax: choose single"),
    ],
)
def test_what_jax_does_not_do_is_refused_before_anything_starts(
    tmp_path: Path, hpcml_environ: dict[str, str], words: list[str], says: str
) -> None:
    hpcml = Hpcml(hpcml_environ, tmp_path)

    done = hpcml("run", "model=transformer_tiny", "model.framework=jax", *words)

    assert done.returncode == 2
    assert says in said_in_one_line(done)


def test_a_run_in_jax_is_planned_started_and_recorded(tmp_path: Path, hpcml_environ: dict[str, str]) -> None:
    hpcml = Hpcml(hpcml_environ, tmp_path)
    small = [f"model.options.{name}={value}" for name, value in SMALL.items()]

    done = hpcml("run", "model=transformer_tiny", "model.framework=jax", "training.steps=3", *small)

    assert done.returncode == 0, done.stderr
    (run,) = hpcml.runs()
    assert (run["state"], run["precision_effective"]) == ("COMPLETED", "fp32")
    assert run["metrics"]["val_loss"]["n"] == 1
