"""The tables of the store (SQLAlchemy Core): every column that queries and migrations use.

Rows refer to each other by integer keys; outside of the store runs are named by uid. Each `t_ms` counts milliseconds
from its run's `epoch_ms`, which never changes once the run is known, so that what an agent reports later moves no row.
`clock_ms` is the run's start on the same clock: the times that queries return count from there.

A change of a table needs a new revision, in migrations/versions and in `hpcml.store.database`. People's queries see
the views of `hpcml.store.views`, so tables may change freely. Where a column of `RUN` has the name of a field of
`hpcml.model.records.RunRecord`, it means the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
    true,
)
from sqlalchemy.types import TypeEngine

from hpcml.model.query_results import TelemetrySpan
from hpcml.model.records import Usage, Work

METADATA = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)
# on a server, too, sorted by characters as in SQLite and in Python, whatever language it speaks
TEXT = Text().with_variant(Text(collation="C"), "postgresql")
_KINDS: Mapping[str, TypeEngine[Any]] = {"int": Integer(), "float": Float(), "str": TEXT, "bool": Boolean()}


def _columns_of(record: type[Usage | Work | TelemetrySpan]) -> list[Column[Any]]:
    """Return a nullable or required column for each field of *record*, by its type.

    So a field that is added to the record class needs nothing else here but a new revision.
    """
    words = [(field.name, str(field.type)) for field in fields(record)]
    return [Column(name, _KINDS[word.partition(" ")[0]], nullable="None" in word) for name, word in words]


RUN = Table(
    "run",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("uid", TEXT, nullable=False, unique=True),
    Column("path", TEXT, nullable=False),
    Column("home", TEXT),  # which folder of runs its directory belongs to (origin.py); NULL: none that is known
    Column("manifest_stamp", TEXT, nullable=False),  # size and time of the run.json that was read
    Column("experiment", TEXT, nullable=False, index=True),
    Column("name", TEXT, index=True),
    Column("spec_hash", TEXT, nullable=False, index=True),
    Column("seed", BigInteger, nullable=False),
    Column("precision", TEXT, nullable=False),
    Column("precision_effective", TEXT),
    Column("numerics", TEXT, nullable=False),
    Column("planned_numerics", TEXT, nullable=False),
    Column("scheduler", TEXT, nullable=False),
    Column("planned_scheduler", TEXT, nullable=False),
    Column("job_id", TEXT),
    Column("array_index", Integer),
    Column("job_name", TEXT),
    Column("job_cluster", TEXT),
    Column("is_shared", Boolean, nullable=False, server_default=false()),
    Column("submission", TEXT, index=True),
    Column("submitted_at", TEXT),
    Column("git_commit", TEXT),
    Column("git_dirty", Boolean),
    Column("state", TEXT, nullable=False),
    Column("is_settled", Boolean, nullable=False, server_default=true()),
    Column("cause", TEXT),
    Column("reason", TEXT),
    Column("exit_code", Integer),
    Column("attempt", Integer, nullable=False),
    Column("t_start", Float),
    Column("t_end", Float),
    Column("wall_s", Float),
    Column("epoch_ms", BigInteger, nullable=False),
    Column("clock_ms", BigInteger, nullable=False),
    # what its samplers wrote was read after its end: nothing more comes, and nobody looks for it
    Column("is_sampled", Boolean, nullable=False, server_default=false()),
    # nobody writes it
    Column("resting_in", Integer, index=True),
)

# Nobody writes it.
FOLDER = Table(
    "folder",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("path", TEXT, nullable=False),
    Column("home", TEXT, nullable=False),  # as in `run`; "": none that is known
    Column(
        "changed_ns", BigInteger, nullable=False
    ),  # while this is its ctime, it holds runs of the store alone; 0: none
    Column("looked_at", Float, nullable=False),  # when all of its runs were looked at last
    Column("cleared_at", Float, nullable=False),  # when unfinished files were looked for in all of them
    UniqueConstraint("path", "home"),
)

# What runs have alike, kept once: all settings of one config group (settings.py).
SETTINGS = Table(
    "settings",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("digest", TEXT, nullable=False, unique=True),  # of the keys and values
)

SETTING = Table(
    "setting",
    METADATA,
    Column("settings_id", ForeignKey("settings.id"), nullable=False),
    Column("key", TEXT, nullable=False, index=True),
    Column("value", TEXT, nullable=False),  # JSON, so that 3 and "3" stay two things
    PrimaryKeyConstraint("settings_id", "key"),
    sqlite_with_rowid=False,
)

RUN_SETTINGS = Table(
    "run_settings",
    METADATA,
    Column("run_id", ForeignKey("run.id"), nullable=False),
    Column("settings_id", ForeignKey("settings.id"), nullable=False, index=True),
    PrimaryKeyConstraint("run_id", "settings_id"),
    sqlite_with_rowid=False,
)

RUN_FACT = Table(
    "run_fact",
    METADATA,
    Column("run_id", ForeignKey("run.id"), nullable=False),
    Column("key", TEXT, nullable=False, index=True),
    Column("value", TEXT, nullable=False),  # JSON
    PrimaryKeyConstraint("run_id", "key"),
    sqlite_with_rowid=False,
)

RUN_TAG = Table(
    "run_tag",
    METADATA,
    Column("run_id", ForeignKey("run.id"), nullable=False),
    Column("position", Integer, nullable=False),
    Column("tag", TEXT, nullable=False, index=True),
    PrimaryKeyConstraint("run_id", "position"),
    sqlite_with_rowid=False,
)

# What people noted of a run, as its journals say.
RUN_NOTE = Table(
    "run_note",
    METADATA,
    Column("run_id", ForeignKey("run.id"), nullable=False),
    Column("position", Integer, nullable=False),
    Column("at", Float, nullable=False),  # unix seconds
    Column("author", TEXT, nullable=False),
    Column("text", TEXT, nullable=False),
    PrimaryKeyConstraint("run_id", "position"),
    sqlite_with_rowid=False,
)

# One file of a run: how far it was read. Rows and cursor change in one transaction, or not at all.
JOURNAL = Table(
    "journal",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("run_id", ForeignKey("run.id"), nullable=False),
    Column("file", TEXT, nullable=False),
    Column("uid", TEXT, nullable=False),
    Column("writer", TEXT, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("host", TEXT, nullable=False),
    Column("t0", Float, nullable=False),
    Column("byte_offset", BigInteger, nullable=False),
    Column("events", Integer, nullable=False),
    Column("bad_lines", Integer, nullable=False),  # lines that are no record: torn, zeroed, foreign
    Column("records", BigInteger, nullable=False, server_default=text("0")),
    Column("next_seq", BigInteger, nullable=False, server_default=text("0")),  # the last record's number, plus one
    Column("lost_records", BigInteger, nullable=False, server_default=text("0")),  # next_seq - records: never came
    Column("rank", Integer, nullable=False, server_default=text("0")),  # among the run's: of two, the higher is taken
    UniqueConstraint("run_id", "file"),
)

METRIC = Table(
    "metric",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("name", TEXT, nullable=False, unique=True),
)

# What one journal says about one metric; series of several writers and attempts make up one curve (curves.py).
SERIES = Table(
    "series",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("run_id", ForeignKey("run.id"), nullable=False),
    Column("metric_id", ForeignKey("metric.id"), nullable=False),
    Column("journal_id", ForeignKey("journal.id"), nullable=False),
    UniqueConstraint("journal_id", "metric_id"),
    Index(None, "run_id", "metric_id"),
)

# No foreign key: it would cost a look-up for each point, and only ingest.py writes here.
POINT = Table(
    "point",
    METADATA,
    Column("series_id", Integer, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("t_ms", BigInteger, nullable=False),
    Column("value", Float),  # NULL is nan, which SQLite cannot keep; infinities it can
    PrimaryKeyConstraint("series_id", "step"),
    sqlite_with_rowid=False,
)

# A run's curve in a few numbers, so that most questions touch no point.
SUMMARY = Table(
    "summary",
    METADATA,
    Column("run_id", ForeignKey("run.id"), nullable=False),
    Column("metric_id", ForeignKey("metric.id"), nullable=False, index=True),
    Column("n", Integer, nullable=False),
    Column("n_nonfinite", Integer, nullable=False),
    Column("first", Float),
    Column("last", Float),
    Column("last_step", BigInteger),
    Column("min", Float),
    Column("min_step", BigInteger),
    Column("max", Float),
    Column("max_step", BigInteger),
    Column("total", Float, nullable=False),
    PrimaryKeyConstraint("run_id", "metric_id"),
    sqlite_with_rowid=False,
)

EVENT = Table(
    "event",
    METADATA,
    Column("journal_id", ForeignKey("journal.id"), nullable=False),
    Column("ordinal", Integer, nullable=False),  # among the events of its journal
    Column("run_id", ForeignKey("run.id"), nullable=False, index=True),
    Column("t_ms", BigInteger, nullable=False),
    Column("name", TEXT, nullable=False),
    Column("details", TEXT, nullable=False),  # JSON
    PrimaryKeyConstraint("journal_id", "ordinal"),
)

# What the run used, and what a step of it does: one row for each run that told (usage.py).
RUN_USAGE = Table(
    "run_usage",
    METADATA,
    Column("run_id", ForeignKey("run.id"), primary_key=True, autoincrement=False),
    *_columns_of(Usage),
    sqlite_with_rowid=False,
)

RUN_WORK = Table(
    "run_work",
    METADATA,
    Column("run_id", ForeignKey("run.id"), primary_key=True, autoincrement=False),
    *_columns_of(Work),
    sqlite_with_rowid=False,
)

# One file of telemetry: how far it was read, and where the reading goes on (`carry`, telemetry.py).
SAMPLER = Table(
    "sampler",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("run_id", ForeignKey("run.id"), nullable=False),
    Column("file", TEXT, nullable=False),
    Column("uid", TEXT, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("node", Integer, nullable=False),
    Column("host", TEXT, nullable=False),
    Column("t0", Float, nullable=False),
    Column("byte_offset", BigInteger, nullable=False),
    Column("bad_lines", Integer, nullable=False),
    Column("carry", TEXT, nullable=False),  # JSON
    UniqueConstraint("run_id", "file"),
)

# A GPU, or the host, as one file of telemetry has it.
DEVICE = Table(
    "device",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("sampler_id", ForeignKey("sampler.id"), nullable=False),
    Column("name", TEXT, nullable=False),  # gpu0, gpu1 ... or host
    Column("uuid", TEXT),
    UniqueConstraint("sampler_id", "name"),
)

# Ten seconds of a device. Rows of the last ten may change until the file ends.
BUCKET = Table(
    "bucket",
    METADATA,
    Column("device_id", ForeignKey("device.id"), nullable=False),
    Column("t_ms", BigInteger, nullable=False),  # their begin
    *(column for column in _columns_of(TelemetrySpan) if column.name != "t_s"),
    PrimaryKeyConstraint("device_id", "t_ms"),
    sqlite_with_rowid=False,
)

# When a scheduler was last asked by any hpcml process of this user: all keep one pace (scheduler_polls.py).
POLL = Table(
    "poll",
    METADATA,
    Column("scheduler", TEXT, primary_key=True),
    Column("claimed_at", Float),  # NULL: nobody is asking
    Column("asked_at", Float),  # NULL: never
    Column("next_at", Float),
    Column("calls", Integer, nullable=False),
    Column("failures", Integer, nullable=False),  # in a row
    Column("problem", TEXT),
    sqlite_with_rowid=False,
)

# What a scheduler said last of a run's job: shown until it is asked again, never a verdict. No foreign key: a word may
# come before its run is read in.
WORD = Table(
    "word",
    METADATA,
    Column("uid", TEXT, primary_key=True),
    Column("at", Float, nullable=False),
    Column("state", TEXT, nullable=False),
    Column("raw", TEXT, nullable=False),
    Column("exit_code", TEXT),
    Column("reason", TEXT),
    Column("expected_start", TEXT),
    Column("is_live", Boolean, nullable=False),
    sqlite_with_rowid=False,
)
