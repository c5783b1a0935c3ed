"""The tables of the store (SQLAlchemy Core). What a row says is a function of a run directory, and of nothing else.

Rows refer to each other by integer keys; outside of the store runs are named by uid. Each `t_ms` counts milliseconds
from its run's `epoch_ms`, its submission, so that what an agent reports later moves no row. `clock_ms` is the run's
start on the same clock: the times that queries return count from there.

A change of a table needs another revision, in migrations/versions and in `hpcml.store.database`. People's queries see
the views of `hpcml.store.views`, so tables may change freely. Where a column of `RUN` has the name of a field of
`hpcml.model.records.RunRecord`, it means the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.types import TypeEngine

from hpcml.model.query_results import TelemetrySpan

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
_KINDS: Mapping[str, TypeEngine[Any]] = {"int": Integer(), "float": Float(), "str": TEXT}
_SPAN = [(field.name, str(field.type)) for field in fields(TelemetrySpan) if field.name != "t_s"]

RUN = Table(
    "run",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("uid", TEXT, nullable=False, unique=True),
    Column("path", TEXT, nullable=False, index=True),
    Column("home", TEXT),  # which folder of runs its directory belongs to (origin.py); NULL: none that is known
    # what was read: name of a file below the directory -> what is known of it (`hpcml.store.run_reader`)
    Column("files", JSON, nullable=False),
    # when its folder of journals changed last, once the run had ended for good: until that changes nobody looks at the
    # files; NULL: the run may go on
    Column("closed_ns", BigInteger),
    Column("experiment", TEXT, nullable=False, index=True),
    Column("name", TEXT, index=True),
    Column("spec_hash", TEXT, nullable=False, index=True),
    Column("seed", BigInteger, nullable=False),
    Column("precision", TEXT, nullable=False),
    Column("precision_effective", TEXT),
    Column("numerics", TEXT, nullable=False),
    Column("scheduler", TEXT, nullable=False),
    Column("job_id", TEXT),
    Column("array_index", Integer),
    Column("job_name", TEXT),
    Column("job_cluster", TEXT),
    Column("is_shared", Boolean, nullable=False),
    Column("submission", TEXT, index=True),
    Column("submitted_at", TEXT),
    Column("git_commit", TEXT),
    Column("git_dirty", Boolean),
    Column("state", TEXT, nullable=False),
    Column("is_settled", Boolean, nullable=False),
    Column("cause", TEXT),
    Column("reason", TEXT),
    Column("exit_code", Integer),
    Column("attempt", Integer, nullable=False),
    Column("t_start", Float),
    Column("t_end", Float),
    Column("wall_s", Float),
    Column("epoch_ms", BigInteger, nullable=False),
    Column("clock_ms", BigInteger, nullable=False),
    Column("bad_lines", Integer, nullable=False),  # over all journals
    Column("lost_records", BigInteger, nullable=False),
    Column("settings", JSON, nullable=False),  # ids of `SETTINGS`, ascending
    Column("facts", JSON, nullable=False),
    Column("tags", JSON, nullable=False),
    Column("notes", JSON, nullable=False),
    Column("usage", JSON(none_as_null=True)),
    Column("work", JSON(none_as_null=True)),
)

# The settings of one config group, kept once for all runs that have them alike: a sweep of a thousand runs has a
# thousand times the same data and cluster.
SETTINGS = Table(
    "settings",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("digest", TEXT, nullable=False, unique=True),
    Column("content", JSON, nullable=False),  # whole key -> value
)

# A metric of a run: its curve in a few numbers (curves.py), so that most questions touch no point.
METRIC = Table(
    "metric",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("run_id", ForeignKey("run.id"), nullable=False),
    Column("name", TEXT, nullable=False, index=True),
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
    # where nan stands for "not measured": how often, and the last measured value
    Column("n_unmeasured", Integer, nullable=False),
    Column("measured", Float),
    Column("measured_step", BigInteger),
    UniqueConstraint("run_id", "name"),
)

# A curve, merged over writers and attempts. No foreign key: it would cost a look-up for each point.
POINT = Table(
    "point",
    METADATA,
    Column("metric_id", Integer, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("t_ms", BigInteger, nullable=False),
    Column("value", Float),  # NULL is nan, which SQLite cannot keep; infinities it can
    PrimaryKeyConstraint("metric_id", "step"),
    sqlite_with_rowid=False,
)

EVENT = Table(
    "event",
    METADATA,
    Column("run_id", ForeignKey("run.id"), nullable=False),
    Column("file", TEXT, nullable=False),
    Column("ordinal", Integer, nullable=False),  # among the events of the file
    Column("attempt", Integer, nullable=False),
    Column("writer", TEXT, nullable=False),
    Column("t_ms", BigInteger, nullable=False),
    Column("name", TEXT, nullable=False),
    Column("details", JSON, nullable=False),
    PrimaryKeyConstraint("run_id", "file", "ordinal"),
    sqlite_with_rowid=False,
)

# About ten seconds of a GPU, or of a node. Those at the end of a file may change until the run has ended.
SAMPLE = Table(
    "sample",
    METADATA,
    Column("run_id", ForeignKey("run.id"), nullable=False),
    Column("file", TEXT, nullable=False),
    Column("device", TEXT, nullable=False),  # gpu0, gpu1 ... or host
    Column("t_ms", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("node", Integer, nullable=False),
    Column("host", TEXT, nullable=False),
    Column("uuid", TEXT),
    *(Column(name, _KINDS[kind.partition(" ")[0]], nullable="None" in kind) for name, kind in _SPAN),
    PrimaryKeyConstraint("run_id", "file", "device", "t_ms"),
    sqlite_with_rowid=False,
)
SPAN_COLUMNS = tuple(name for name, _ in _SPAN)
