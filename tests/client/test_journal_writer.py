from __future__ import annotations

import json
import math
import os
import resource
import signal
import statistics
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcml.runs.journal import Event, Metrics, parse_chunk, read_journal
from hpcml_client.journal import VERSION, JournalWriter

_values = st.dictionaries(st.text(min_size=1), st.floats(), min_size=1, max_size=4)
_plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def _written(path: Path, **options: object) -> JournalWriter:
    return JournalWriter.open(str(path), run="20261121-080000-abcdef", **options)  # type: ignore[arg-type]


def _same(a: dict[str, float], b: dict[str, float]) -> bool:
    return a.keys() == b.keys() and all(a[k] == b[k] or (math.isnan(a[k]) and math.isnan(b[k])) for k in a)


def _without_non_finite(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_non_finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_non_finite(item) for item in value]
    return repr(value) if isinstance(value, float) and math.isinf(value) else value


def test_the_header_says_who_writes_for_which_run(tmp_path: Path) -> None:
    before = time.time()

    with _written(tmp_path / "journal", attempt=3, writer="rank7") as journal:
        path = Path(journal.path or "")

    header = read_journal(path).header
    assert header is not None
    assert (header.run, header.attempt, header.writer, header.pid) == (
        "20261121-080000-abcdef",
        3,
        "rank7",
        os.getpid(),
    )
    assert before <= header.t0 <= time.time()
    assert path.name == f"3-{header.host}-{os.getpid()}-rank7.jsonl"
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_version_in_the_header_is_that_of_hpcml() -> None:
    from importlib.metadata import version  # noqa: PLC0415

    assert version("hpcml") == VERSION


def test_two_writers_of_one_process_never_share_a_file(tmp_path: Path) -> None:
    with _written(tmp_path) as one, _written(tmp_path) as two:
        one.event("one")
        two.event("two")

    names = sorted(record.name for path in tmp_path.iterdir() for record in read_journal(path).records)
    assert len(list(tmp_path.iterdir())) == 2
    assert names == ["one", "two"]


@given(steps=st.lists(st.tuples(st.integers(-(2**40), 2**40), _values), max_size=5))
def test_every_float_and_every_name_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, dict[str, float]]]
) -> None:
    with _written(tmp_path_factory.mktemp("journal")) as journal:
        for step, values in steps:
            journal.metrics(step, values)

    chunk = read_journal(Path(journal.path or ""))
    assert chunk.bad_lines == 0
    assert [record.seq for record in chunk.records] == list(range(len(steps)))
    for (step, values), record in zip(steps, chunk.records, strict=True):
        assert isinstance(record, Metrics)
        assert record.step == step
        assert _same(record.values, values)


@given(name=st.text(min_size=1), details=st.dictionaries(st.text(), _plain, max_size=4))
def test_every_event_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, name: str, details: dict[str, object]
) -> None:
    with _written(tmp_path_factory.mktemp("journal")) as journal:
        journal.event(name, details)

    (event,) = read_journal(Path(journal.path or "")).records
    assert isinstance(event, Event)
    assert (event.name, event.details) == (name, _without_non_finite(details))


def test_what_json_does_not_know_is_written_as_text(tmp_path: Path) -> None:
    circle: list[object] = []
    circle.append(circle)

    with _written(tmp_path) as journal:
        journal.event(
            "odd", {"path": Path("/a/b"), "nan": [math.nan], "large": 10**5000, "circle": circle, "t": (1, 2)}
        )

    (event,) = read_journal(Path(journal.path or "")).records
    assert isinstance(event, Event)
    assert event.details["path"] == "/a/b"
    assert event.details["nan"] == ["nan"]
    assert event.details["large"].startswith("0x")
    assert event.details["t"] == [1, 2]


def test_numpy_floats_are_written_as_numbers(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")

    with _written(tmp_path) as journal:
        journal.metrics(1, {"a": numpy.float64(0.1), "b": numpy.float64("nan")})

    (record,) = read_journal(Path(journal.path or "")).records
    assert isinstance(record, Metrics)
    assert record.values["a"] == 0.1
    assert math.isnan(record.values["b"])


def test_a_journal_cut_at_any_byte_loses_only_the_torn_line(tmp_path: Path) -> None:
    with _written(tmp_path) as journal:
        journal.metrics(1, {'loss "x"': math.nan, "b": 1e-300})
        journal.event("note", {"text": "zwei\nZeilen, \N{GREEK SMALL LETTER MU}"})
        journal.metrics(2, {'loss "x"': 0.25})
    data = Path(journal.path or "").read_bytes()

    for cut in range(len(data) + 1):
        chunk = parse_chunk(data[:cut], offset=0)
        complete = data[:cut].count(b"\n")  # header, three records, and the header once more at the end
        assert len(chunk.records) == min(max(0, complete - 1), 3)
        assert chunk.bad_lines == 0


def test_a_forked_child_writes_a_file_of_its_own(tmp_path: Path) -> None:
    journal = _written(tmp_path, writer="rank0")
    journal.event("before")

    child = os.fork()
    if child == 0:
        journal.event("in the child")
        os._exit(0)
    os.waitpid(child, 0)
    journal.event("after")
    journal.close()

    by_pid = {}
    for path in tmp_path.iterdir():
        chunk = read_journal(path)
        assert chunk.header is not None
        by_pid[chunk.header.pid] = [(record.seq, record.name) for record in chunk.records if isinstance(record, Event)]
    assert by_pid == {os.getpid(): [(0, "before"), (1, "after")], child: [(0, "in the child")]}


def test_each_journal_that_is_left_begins_anew_in_a_forked_child(tmp_path: Path) -> None:
    first, second, gone = (_written(tmp_path / name) for name in ("first", "second", "gone"))
    first.event("before")
    forgotten = weakref.ref(gone)
    del gone

    child = os.fork()
    if child == 0:
        first.event("in the child")
        second.event("in the child")
        os._exit(0)
    os.waitpid(child, 0)

    assert forgotten() is None  # what runs after a fork keeps none alive
    for name in ("first", "second"):
        written = [read_journal(path) for path in (tmp_path / name).iterdir()]
        of_child = [chunk for chunk in written if chunk.header is not None and chunk.header.pid == child]
        assert [[record.seq for record in chunk.records] for chunk in of_child] == [[0]]


def test_a_child_that_writes_nothing_leaves_no_file(tmp_path: Path) -> None:
    with _written(tmp_path) as journal:
        child = os.fork()
        if child == 0:
            journal.close()
            os._exit(0)
        os.waitpid(child, 0)
        journal.event("still open")

    (path,) = tmp_path.iterdir()
    assert len(read_journal(path).records) == 1


def test_a_child_forked_while_another_thread_holds_the_lock_does_not_hang(tmp_path: Path) -> None:
    journal = _written(tmp_path)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            journal.metrics(1, {"a": 1.0})

    thread = threading.Thread(target=write)
    thread.start()
    for _ in range(20):
        command = [sys.executable, "-c", ""]
        assert subprocess.run(command, preexec_fn=lambda: journal.event("child"), check=True).returncode == 0
    stop.set()
    thread.join()
    journal.close()

    assert len(list(tmp_path.iterdir())) == 21


def test_threads_write_whole_lines_with_unbroken_numbers(tmp_path: Path) -> None:
    with _written(tmp_path) as journal:
        threads = [
            threading.Thread(target=lambda: [journal.metrics(i, {"a": 1.0}) for i in range(500)]) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    chunk = read_journal(Path(journal.path or ""))
    assert chunk.bad_lines == 0
    assert [record.seq for record in chunk.records] == list(range(2000))


def test_a_signal_handler_may_write_while_its_thread_is_writing(tmp_path: Path) -> None:
    with _written(tmp_path) as journal:
        before = signal.signal(signal.SIGALRM, lambda *_: journal.event("alarm"))
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        try:
            for step in range(20_000):
                journal.metrics(step, {"a": 1.0})
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    chunk = read_journal(Path(journal.path or ""))
    assert chunk.bad_lines == 0
    assert sum(isinstance(record, Metrics) for record in chunk.records) == 20_000
    assert any(isinstance(record, Event) for record in chunk.records)
    assert sorted(record.seq for record in chunk.records) == list(range(len(chunk.records)))


_FULL_DISK = """
import resource, sys
from hpcml_client.journal import JournalWriter

journal = JournalWriter.open(sys.argv[1], run="r")
journal.metrics(0, {"a": 1.0})
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (600, hard))
for step in range(1, 21):
    journal.metrics(step, {"a": float(step)})
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
journal.metrics(21, {"a": 21.0})
journal.close()
"""


def test_a_full_disk_costs_records_and_is_said_but_stops_nothing(tmp_path: Path) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY

    done = subprocess.run([sys.executable, "-c", _FULL_DISK, str(tmp_path)], capture_output=True, text=True, check=True)

    (path,) = tmp_path.iterdir()
    chunk = read_journal(path)
    steps = [record.step for record in chunk.records if isinstance(record, Metrics)]
    (gap,) = [record for record in chunk.records if isinstance(record, Event)]
    assert done.stderr.count("\n") == 1
    assert "records are being lost" in done.stderr
    assert steps == [*range(len(steps) - 1), 21]
    assert (gap.name, gap.details) == ("journal_gap", {"dropped": 22 - len(steps)})
    assert chunk.bad_lines == 1  # the line that the full disk tore; what follows begins afresh


def test_a_directory_that_cannot_be_made_stops_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")

    with _written(tmp_path / "file" / "journal") as journal:
        journal.metrics(1, {"a": 1.0})
        journal.event("b")

    assert (journal.path, journal.dropped) == (None, 2)
    assert capsys.readouterr().err.count("\n") == 1


def test_writing_begins_once_the_directory_can_be_made(tmp_path: Path) -> None:
    clock = [0.0]
    (tmp_path / "journal").write_text("")
    journal = JournalWriter(str(tmp_path / "journal"), run="r", attempt=0, writer="agent", now=lambda: clock[0])
    journal.metrics(1, {"lost": 1.0})
    journal.event("waits")
    (tmp_path / "journal").unlink()

    clock[0] = 6.0
    journal.event("kept")
    journal.close()

    records = read_journal(Path(journal.path or "")).records
    assert [(record.seq, record.name) for record in records if isinstance(record, Event)] == [
        (1, "waits"),
        (2, "kept"),
        (3, "journal_gap"),
    ]


def test_a_record_after_closing_is_dropped_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = _written(tmp_path)
    journal.close()

    journal.event("late")

    assert "after" in capsys.readouterr().err
    assert read_journal(Path(journal.path or "")).records == []


def test_a_name_that_is_no_file_name_is_made_one(tmp_path: Path) -> None:
    with _written(tmp_path, writer="../ü/rank0") as journal:
        assert Path(journal.path or "").parent == tmp_path

    header = read_journal(Path(journal.path or "")).header
    assert header is not None
    assert header.writer == "../ü/rank0"


def test_a_killed_process_loses_nothing_that_it_had_written(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\n"
        "from hpcml_client.journal import JournalWriter\n"
        "journal = JournalWriter.open(sys.argv[1], run='r')\n"
        "[journal.metrics(i, {'a': 1.0}) for i in range(100)]\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )

    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)

    (path,) = tmp_path.iterdir()
    assert len(read_journal(path).records) == 100


def test_a_record_costs_microseconds(tmp_path: Path) -> None:
    values = {"loss": 0.123456789, "step_time_s": 0.0123}
    with _written(tmp_path) as journal:
        costs = []
        for step in range(2000):
            began = time.perf_counter()
            journal.metrics(step, values)
            costs.append(time.perf_counter() - began)

    assert statistics.median(costs) < 100e-6  # ten times what was measured: this machine may be busy
    assert json.loads(Path(journal.path or "").read_text().splitlines()[2000])["v"] == values
