"""``hpcml compare --checklist``: what a reviewer asks and the records' answers, also as a section of `hpcml report`."""

from __future__ import annotations

from hpcml.codec import encode
from hpcml.model.checklist import NOT_RECORDED, Checklist, ChecklistAnswer
from hpcml.model.comparison import Comparison
from hpcml.report.comparison import introduction
from hpcml.report.document import Document, Entry, Remarks, Section, Table, text_column, words

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
        lines=[
            {
                "key": answer.key,
                "question": answer.question,
                "is_recorded": answer.is_recorded,
                "answer": "; ".join(answer.lines),
                "asked_by": "; ".join(answer.asked_by),
            }
            for answer in checklist.answers
        ],
    )


def checklist_section(checklist: Checklist) -> Section:
    """Return the section of the questions, each with its answer, "not recorded" where there is none."""
    rows = [[words(answer.question), _said(answer), words("; ".join(answer.asked_by))] for answer in checklist.answers]
    columns = [text_column("question"), text_column("answer"), text_column("asked by")]
    return Section(
        heading=_HEADING, parts=[Table(caption=_CAPTION, columns=columns, rows=rows), Remarks(lines=_SOURCES)]
    )


def _said(answer: ChecklistAnswer) -> Entry:
    return Entry(text="; ".join(answer.lines)) if answer.is_recorded else Entry(text=NOT_RECORDED, tone="doubt")
