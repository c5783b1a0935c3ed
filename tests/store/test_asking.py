from __future__ import annotations

import math
from pathlib import Path

import pytest

from hpcml.errors import StoreError
from hpcml.model.query_results import SqlRows
from hpcml.store.database import Database
from hpcml.store.ingest import ingest_all
from hpcml.store.loading import COLUMNS
from hpcml.store.query import find_runs
from hpcml.store.sql import ask
from hpcml.store.views import VIEWS
from tests.store.building import T0, Journal, contents, curve, make_run_dir

UID, OTHER = "20260528-202640-aaaaaa", "20260528-202640-bbbbbb"
TEXTS = [
    "plain",
    'quo"ted',
    "it's",
    "ä 😀 \\ud83d",
    "line\nbreak",
    "<b>&amp;</b>",
    "'; DROP TABLE run; --",
    "nul\0nul",
    "",
]


@pytest.fixture
def asked(store: Database, runs: Path) -> Database:
    """A run of two attempts whose writers repeat steps, with every kind of value, and another that only waits."""
    run_dir = make_run_dir(runs, UID, name="first", tags=["paper", "b"], seed=7)
    agent = Journal(run_dir, writer="agent")
    agent.event("attempt_started")
    agent.event("facts", texts=TEXTS[0], cores=8, load=0.5, is_shared=True, nothing=None, far=math.inf)
    agent.event("facts", **{f"text{at}": text for at, text in enumerate(TEXTS)})
    rank0, rank1 = Journal(run_dir, t0=T0 + 1), Journal(run_dir, writer="rank1", t0=T0 + 1)
    for step in range(4):
        rank1.metrics(step, step, loss=100.0)
        rank0.metrics(step, step, loss=1.0 - step / 10, odd=[1.0, math.nan, math.inf, -math.inf][step])
    again = Journal(run_dir, attempt=2, t0=T0 + 100)
    again.metrics(3, 1.5, loss=0.25)
    again.event("note", 2.0, text="gone on")
    Journal(run_dir, writer="agent", attempt=2).event("attempt_ended", 110.0, state="COMPLETED", wall_s=12.5)
    make_run_dir(runs, OTHER, seed=8)
    ingest_all(store, runs)
    return store


def rows(store: Database, sql: str) -> list[tuple[object, ...]]:
    return [tuple(row) for row in ask(store, sql, limit_s=300).rows]


def test_runs_are_what_records_say(asked: Database) -> None:
    answer = ask(asked, "SELECT * FROM runs ORDER BY uid", limit_s=300)

    assert set(answer.columns) <= set(COLUMNS) == set(answer.columns) | {"is_shared", "bad_lines", "lost_records"}
    for record, run in zip(answer.records(), find_runs(asked), strict=True):
        assert record == {key: getattr(run, key) for key in answer.columns}


def test_settings_and_facts_are_texts_and_numbers(asked: Database) -> None:
    def facts(*keys: str) -> list[tuple[object, ...]]:
        wanted = ", ".join(f"'{key}'" for key in keys)
        return rows(asked, f"SELECT value, number FROM facts WHERE key IN ({wanted}) ORDER BY key")  # noqa: S608

    assert facts("cores", "load") == [("8", 8.0), ("0.5", 0.5)]
    assert facts("is_shared", "nothing") == [("true", None), (None, None)]
    assert rows(asked, "SELECT value FROM params WHERE key = 'tags' ORDER BY uid") == [('["paper","b"]',), ("[]",)]
    assert facts("far") == [("inf", None)]
    texts = [value for value, number in facts(*(f"text{at}" for at in range(len(TEXTS)))) if number is None]
    assert len(texts) == len(TEXTS)
    for came, told in zip(texts, TEXTS, strict=True):
        assert came == told or "\0" in told
    assert rows(asked, f"SELECT value, number FROM params WHERE key = 'seed' AND uid = '{UID}'") == [("7", 7.0)]  # noqa: S608
    assert rows(asked, f"SELECT value FROM params WHERE key = 'precision.name' AND uid = '{UID}'") == [("tf32",)]  # noqa: S608


def test_points_are_the_curve_and_metrics_its_summary(asked: Database) -> None:
    for metric in ("loss", "odd"):
        came = rows(asked, f"SELECT step, t_s, value FROM points WHERE metric = '{metric}' ORDER BY step")  # noqa: S608
        points = [(p.step, p.t_s, None if math.isnan(p.value) else p.value) for p in curve(asked, UID, metric)]
        assert [
            (step, t_s, None if value is None or math.isnan(value) else value) for step, t_s, value in came
        ] == points
        told = ask(asked, f"SELECT * FROM metrics WHERE metric = '{metric}'", limit_s=300).records()  # noqa: S608
        summary = find_runs(asked)[0].metrics[metric]
        assert told == [
            {"uid": UID, "metric": metric, **{key: getattr(summary, key) for key in VIEWS["metrics"][1][2:]}}
        ]
    assert rows(asked, "SELECT value FROM points WHERE metric = 'loss' AND step >= 2 ORDER BY step") == [
        (0.8,),
        (0.25,),
    ]


def test_the_rest_of_what_is_known_can_be_asked_for(asked: Database) -> None:
    assert rows(asked, "SELECT uid, tag FROM tags ORDER BY tag") == [(UID, "b"), (UID, "paper")]
    assert rows(asked, "SELECT t_s, attempt, writer, details FROM events WHERE name = 'note'") == [
        (102.0, 2, "rank0", '{"text":"gone on"}')
    ]
    assert rows(asked, "SELECT * FROM notes") == []
    assert rows(asked, "SELECT sum(n), avg(min_step) + 0.5 FROM metrics WHERE metric = 'loss'") == [(4, 3.5)]


def test_every_view_has_the_columns_it_is_documented_with(asked: Database) -> None:
    for name, (_, columns, _) in VIEWS.items():
        assert ask(asked, f"SELECT * FROM {name}", limit_s=300).columns == list(columns)  # noqa: S608


def test_columns_of_one_name_are_told_apart(asked: Database) -> None:
    assert ask(asked, "SELECT 1 AS a, 2 AS a, 3 AS b, 4 AS a", limit_s=300) == SqlRows(
        columns=["a", "a:1", "b", "a:2"], rows=[(1, 2, 3, 4)]
    )
    assert rows(asked, "SELECT '50%' WHERE 'ab' LIKE 'a%' -- a % is nothing special") == [("50%",)]


WRITING = [
    "DELETE FROM run",
    "UPDATE run SET uid = 'x'",
    "INSERT INTO metric (name) VALUES ('x')",
    "DROP VIEW runs",
    "CREATE TABLE mine (a integer)",
    "WITH gone AS (SELECT 1) DELETE FROM run",
]


@pytest.mark.parametrize("sql", WRITING)
def test_nothing_can_be_written(asked: Database, sql: str) -> None:
    before = contents(asked)

    with pytest.raises(StoreError, match="the store is only read from here: write SELECT"):
        ask(asked, sql, limit_s=300)

    assert contents(asked) == before
    assert rows(asked, "SELECT count(*) FROM runs") == [(2,)]


@pytest.mark.parametrize("sql", ["SELECT 1; DELETE FROM run", "COMMIT; DROP TABLE run_tag", "SELECT 1;;SELECT 2"])
def test_only_one_statement_is_taken(asked: Database, sql: str) -> None:
    before = contents(asked)

    with pytest.raises(StoreError, match="query: "):
        ask(asked, sql, limit_s=300)

    assert contents(asked) == before


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("", "there is no statement"),
        (" ;\n", "there is no statement"),
        ("SELEC 1", "syntax error"),
        ("SELECT * FROM rnus", "did you mean runs"),
        ("SELECT * FROM table_of_mine", "there are runs, params, facts"),
        ("SELECT nonsense FROM runs", "hpcml query lists the columns"),
        ("SELECT 1/", "syntax error|incomplete input"),
    ],
)  # fmt: skip
def test_a_slip_is_said_in_one_line(asked: Database, sql: str, says: str) -> None:
    with pytest.raises(StoreError, match=says) as refusal:
        ask(asked, sql, limit_s=300)
    assert "\n" not in str(refusal.value)


def test_a_question_that_takes_too_long_is_given_up(asked: Database) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"

    with pytest.raises(StoreError, match=r"no answer within 0.2 s: .*--timeout"):
        ask(asked, endless, limit_s=0.2)

    assert rows(asked, "SELECT count(*) FROM runs") == [(2,)]
    ingest_all(asked, Path(find_runs(asked)[0].path).parents[1])  # and the store is as it was, to be written too
