"""What weakens a number or leaves a question without an answer: a code, a level and one sentence, shown as a footnote.

A flag that blocks is the reason why there is no verdict. All questions of this room say their doubts by this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

FlagLevel = Literal["blocks", "doubt", "note"]  # no verdict because of it; weakens a number; worth knowing


class FlagCode(StrEnum):
    """What may weaken a row, or a whole cell; `FLAGS` has the sentences."""

    CONFOUNDED = "confounded"
    NO_REFERENCE = "no reference"
    WALLTIME = "walltime"
    NOT_INTERLEAVED = "not interleaved"
    NODES = "nodes"
    SUBMISSIONS = "submissions"
    MARGIN_AFTERWARDS = "margin afterwards"
    FEW_SEEDS = "few seeds"
    UNPAIRED = "unpaired"
    NO_SPREAD = "no spread"
    SAME_VALUES = "same values"
    HOLM = "holm"
    LOST = "lost"
    FAILED = "failed"
    DIVERGED = "diverged"
    INCOMPLETE = "incomplete"
    UNPROVEN = "unproven"
    OTHER_PRECISION = "other precision"
    SPEED = "speed"
    ENERGY = "energy"
    RECORDS = "records"
    ASSUMED = "assumed"


FLAGS: Mapping[FlagCode, tuple[FlagLevel, str]] = {  # what it usually is, and the sentence
    FlagCode.CONFOUNDED: ("doubt", "CONFOUNDED by {what}"),
    FlagCode.NO_REFERENCE: ("blocks", "no run of {reference} counts here: nothing to subtract"),
    FlagCode.WALLTIME: (
        "doubt",
        "walltime ended {n} of {of} runs: {metric} is that of step {step}, which all reached",
    ),
    FlagCode.NOT_INTERLEAVED: ("doubt", "not interleaved: {order}; what drifted meanwhile is in the differences"),
    FlagCode.NODES: ("doubt", "{what}: {why}"),
    FlagCode.SUBMISSIONS: ("note", "{unit} came in {n} submissions"),
    FlagCode.MARGIN_AFTERWARDS: ("doubt", "the margin was given afterwards: fix it beforehand (objective.margin)"),
    FlagCode.FEW_SEEDS: ("doubt", "{n} {unit}: {enough}, take 5"),
    FlagCode.UNPAIRED: ("note", "{how}"),
    FlagCode.NO_SPREAD: ("blocks", "all differences are the same, so nothing says how certain they are: {advice}"),
    FlagCode.SAME_VALUES: ("doubt", "{which}, bit for bit: {question}"),
    FlagCode.HOLM: ("note", "{alone} if it were the only row, {verdict} among {m} (Holm)"),
    FlagCode.LOST: ("doubt", "{lost} of {n} {unit} lost to their own doing, {other_lost} of {other_n} of {reference}"),
    FlagCode.FAILED: ("doubt", "{n} of {of} ended runs failed: {causes}"),
    FlagCode.DIVERGED: ("doubt", "in {n} of {of} runs {metrics} was no number {when}"),
    FlagCode.INCOMPLETE: ("doubt", "not counted: {what}"),
    FlagCode.UNPROVEN: ("blocks", "precision {whose}{what}"),
    FlagCode.OTHER_PRECISION: ("blocks", "{asked}, measured {measured}"),
    FlagCode.SPEED: ("note", "{what}"),
    FlagCode.ENERGY: ("doubt", "energy: {what}"),
    FlagCode.RECORDS: ("doubt", "{what}"),
    FlagCode.ASSUMED: ("note", "{what}"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One reason to doubt a number, or why there is no verdict; `text` is one sentence for people."""

    code: FlagCode
    level: FlagLevel
    text: str

    def __str__(self) -> str:
        return self.text


def flag(code: FlagCode, level: FlagLevel | None = None, **words: object) -> Flag:
    """Return the flag with its sentence filled with *words*; *level* where it is another than the usual one.

    >>> str(flag(FlagCode.SUBMISSIONS, unit="seeds", n=3))
    'seeds came in 3 submissions'
    """
    usual, sentence = FLAGS[code]
    return Flag(code=code, level=level or usual, text=sentence.format(**words))
