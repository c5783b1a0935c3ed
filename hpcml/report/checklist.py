"""``hpcml compare --checklist``: what a reviewer asks and the records' answers, also as a section of `hpcml report`."""

from __future__ import annotations

from hpcml.codec import encode
from hpcml.model.checklist import NOT_RECORDED, Checklist, ChecklistAnswer
from hpcml.model.comparison import Comparison
from hpcml.report.comparison import introduction
from hpcml.report.document import Column, Document, Listing, Section

FORMAT = 1  # of JSON; grows when a key changes its meaning or goes
_HEADING = "What a reviewer asks"
_CAPTION = "Answered from the records alone"
_SOURCES = (
    "NeurIPS: items of the Paper Checklist, https://neurips.cc/public/guides/PaperChecklist",
    "NeurIPS 4 reproducibility, 5 access to code, 6 experimental setting, 7 statistical significance, 8 compute",
    "MLPerf: sections of https://github.com/mlcommons/training_policies/blob/master/training_rules.adoc",
)


def checklist_document(comparison: Comparison, checklist: Checklist) -> Document:
    """Return the document of ``hpcml compare --checklist``: a table of questions with their answers."""
    record = encode(checklist)
    for encoded, answer in zip(record["answers"], checklist.answers, strict=True):
        encoded["is_recorded"] = answer.is_recorded
    return Document(
        introduction=introduction(comparison),
        sections=[checklist_section(checklist)],
        record={"format": FORMAT, "by": comparison.by, "metric": comparison.metric, **record},
    )


def checklist_section(checklist: Checklist) -> Section:
    """Return the section of the questions, each with its answer, "not recorded" where there is none."""
    columns: list[Column[ChecklistAnswer]] = [
        Column("key", None, lambda answer: answer.key),
        Column("question", "question", lambda answer: answer.question),
        Column("is_recorded", None, lambda answer: answer.is_recorded),
        Column(
            "answer",
            "answer",
            lambda answer: "; ".join(answer.lines),
            lambda answer: "; ".join(answer.lines) or NOT_RECORDED,
            tone=lambda answer: "plain" if answer.is_recorded else "doubt",
        ),
        Column("asked_by", "asked by", lambda answer: "; ".join(answer.asked_by)),
    ]
    listing = Listing(caption=_CAPTION, columns=columns, rows=checklist.answers, notes=_SOURCES)
    return Section(heading=_HEADING, parts=[listing])
