"""`Client.apply_precision`: a precision is set in a framework, measured there, and compared with what was asked for."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from hpcml_client.client import Client
from hpcml_client.formats import name_precision
from hpcml_client.precisions import OWN

FRAMEWORKS = ("torch", "tensorflow", "jax", "numpy")
MISMATCH_STATUS = 2  # what a program ends with that cannot be what it was asked to be


class Asked(NamedTuple):
    """The settings of the run that concern its arithmetic."""

    precision: str
    numerics: str
    device: str | None  # cpu, cuda; None: nobody planned one
    local_rank: int
    rounding: str
    loss_scaling: bool


class PrecisionMismatchError(SystemExit):
    """The device computes in another precision than asked for; ends the program with status 2."""

    def __init__(self, words: str) -> None:
        super().__init__(MISMATCH_STATUS)
        self.words = words


def apply_to(run: Client, framework: str | None) -> Any:  # noqa: ANN401 - the Arithmetic of a framework
    """Set and measure the precision of *run*, report both events, return the framework's Arithmetic.

    `Client.apply_precision` describes what happens at a mismatch.
    """
    settings: Mapping[str, Any] = run.config.get("run") or {}
    wanted: Mapping[str, Any] = settings.get("precision") or {}

    def said(field: str, otherwise: object) -> Any:  # noqa: ANN401 - whatever run.json says
        return otherwise if wanted.get(field) is None else wanted[field]

    asked = Asked(
        precision=run.precision,
        numerics=run.numerics,
        device=(run.config.get("plan") or {}).get("device"),
        local_rank=run.local_rank,
        rounding=str(said("rounding", "rna")),
        loss_scaling=bool(said("loss_scaling", True)),  # noqa: FBT003 - a default
    )
    chosen = framework or (settings.get("model") or {}).get("framework") or "torch"
    arithmetic, facts, proof = apply(chosen, asked)
    run.event("framework", **facts)
    run.event("precision", **proof)
    if proof["mismatch"]:
        words = mismatch_words(proof)
        # Outside of a run nothing is recorded under the name of a precision that it was not.
        ends = said("on_mismatch", "warn" if run.run_dir is None else "fail") == "fail"
        # hpcml/model/failure_causes.py knows the first of these lines
        sys.stderr.write(f"hpcml_client: {'ended, because' if ends else 'goes on, although'} {words}\n")
        sys.stderr.flush()
        if ends:
            raise PrecisionMismatchError(words)
        run.note(words)
    if chosen == "torch" and run.run_dir is not None and said("observe", "auto") != "never":
        _observe(run, proof)
    return arithmetic


def _observe(run: Client, proof: Mapping[str, Any]) -> None:
    """Have what the program multiplies from now on reported; *proof* is what the probe has measured."""
    from hpcml_train.torch.injection import OBSERVED_RANKS
    from hpcml_train.torch.observer import observe

    observer = observe(run, how="client", is_brief=run.rank >= OBSERVED_RANKS)
    observer.know_probe(proof["products"], proof["device"])
    run.watched_by(observer)


def apply(framework: str, asked: Asked) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Return the framework's Arithmetic, all switches set, and the details of two events.

    The first are those of ``framework``, the second those of ``precision``: with the measured precision as
    ``effective``, and whether that is a ``mismatch``.
    """
    if framework not in FRAMEWORKS:
        raise ValueError(f"framework={framework!r}: apply_precision knows {', '.join(FRAMEWORKS)}")
    if importlib.util.find_spec(framework) is None:
        raise ModuleNotFoundError(f"apply_precision needs {framework}, which is not installed here", name=framework)
    arithmetic, facts, proof = _apply(framework, asked)
    effective = name_precision(proof["products"], proof["parameters"])
    return arithmetic, facts, {**proof, "effective": effective, "mismatch": asked.precision not in (OWN, effective)}


def mismatch_words(proof: Mapping[str, Any]) -> str:
    """Return one line about a *proof* (details of the event ``precision``) that is a mismatch."""
    flipped = ", ".join(f"{name}={value}" for name, value in proof["flipped"].items())
    because = f"; changed by somebody: {flipped}" if flipped else ""
    return (
        f"precision={proof['requested']} was asked for, but {proof['effective']} was measured on "
        f"{proof['device']}{because}"
    )


def _apply(framework: str, asked: Asked) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Return the framework's Arithmetic, and what `describe_framework` and `measure_precision` say of it."""
    if framework == "numpy":
        from hpcml_train.precision import numpy_arithmetic

        plain = numpy_arithmetic.Arithmetic(asked.precision, numerics=asked.numerics, device=asked.device)
        return plain, numpy_arithmetic.describe_framework(), numpy_arithmetic.measure_precision(plain)
    made = importlib.import_module(f"hpcml_train.{framework}.arithmetic")
    probe = importlib.import_module(f"hpcml_train.{framework}.probe")
    arithmetic = made.Arithmetic(
        asked.precision,
        numerics=asked.numerics,
        device=made.choose_device(asked.device, asked.local_rank),
        loss_scaling=asked.loss_scaling,
        **({"rounding": asked.rounding} if framework == "torch" else {}),  # of what is emulated
    )
    return arithmetic, probe.describe_framework(arithmetic), probe.measure_precision(arithmetic)
