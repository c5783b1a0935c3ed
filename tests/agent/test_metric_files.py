"""Files of metrics as the real libraries write them, and as nobody should, read and followed."""

from __future__ import annotations

import gzip
import json
import math
import os
import random
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hpcml.agent.metrics.event_files import EventFile, masked_crc32c
from hpcml.agent.metrics.follow import WRITER, MetricsFollower
from hpcml.agent.metrics.json_files import JsonFile, JsonLines
from hpcml.agent.metrics.printed import FoundMetrics
from hpcml.agent.metrics.reading import Damaged
from hpcml.agent.metrics.sources import begun_at, sources_in
from hpcml.agent.metrics.tables import CsvTable
from hpcml.agent.metrics.wandb_log import WandbLog
from hpcml.errors import ConfigError
from hpcml.model.metric_sources import MetricRule, check_metric_files
from hpcml.runs.journal import Event, Metrics, read_journal
from hpcml.runs.layout import RunDir
from hpcml.runs.plan import Staging
from hpcml_client.journal import JournalWriter
from tests.agent.node import MakeRun, agent, told

if TYPE_CHECKING:
    from hpcml.agent.metrics.reading import Reader

RECORDED = Path(__file__).parent / "recorded" / "wandb-0.31.0-offline.wandb.gz"
Points = dict[str, list[tuple[int, float]]]


def read_all(reader: Reader) -> Points:
    found: Points = {}
    more = True
    while more:
        readings, more = reader.read()
        for each in readings:
            found.setdefault(each.name, []).append((each.step, each.value))
    return found


@pytest.fixture
def events(tmp_path: Path) -> Path:
    """An event file that PyTorch has written, with scalars among other things."""
    torch = pytest.importorskip("torch", reason="its writer writes the file")
    pytest.importorskip("tensorboard", reason="torch writes with it")
    from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415

    with SummaryWriter(str(tmp_path / "runs")) as writer:
        writer.add_histogram("weights", torch.randn(1000), 0)
        writer.add_text("words", "hello", 0)
        writer.add_image("noise", torch.rand(3, 800, 800), 0)  # more than a piece
        for step in range(10):
            writer.add_scalar("loss", 1 / (step + 1), step * 10)
        writer.add_scalar("bad", math.nan, 3)
    (path,) = (tmp_path / "runs").iterdir()
    return path


def test_scalars_of_pytorch_are_read_and_nothing_else(events: Path) -> None:
    found = read_all(EventFile(events.parent, events))

    assert found.keys() == {"loss", "bad"}
    assert [step for step, _ in found["loss"]] == list(range(0, 100, 10))
    assert found["loss"][3][1] == 0.25
    assert math.isnan(found["bad"][0][1])


def test_scalars_of_tensorflow_are_read(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow", reason="its writer writes the file")
    with tf.summary.create_file_writer(str(tmp_path)).as_default():
        for dtype in (tf.float32, tf.float64, tf.float16, tf.int64):
            tf.summary.scalar(dtype.name, tf.cast(3, dtype), step=5)
        tf.summary.histogram("h", [1.0, 2.0], step=1)
    (path,) = tmp_path.iterdir()

    assert read_all(EventFile(tmp_path, path)) == {
        name: [(5, 3.0)] for name in ("float32", "float64", "float16", "int64")
    }


def test_an_event_file_cut_at_any_byte_gives_what_is_whole_and_goes_on_there(events: Path, tmp_path: Path) -> None:
    content = events.read_bytes()
    whole = read_all(EventFile(events.parent, events))["loss"]
    growing = tmp_path / "growing"
    for cut in (*range(30), *range(len(content) - 400, len(content), 7)):
        growing.write_bytes(content[:cut])
        reader = EventFile(tmp_path, growing)
        before = read_all(reader).get("loss", [])
        growing.write_bytes(content)
        assert before + read_all(reader).get("loss", []) == whole


def test_a_damaged_event_file_ends_with_one_line(events: Path, tmp_path: Path) -> None:
    content = bytearray(events.read_bytes())
    rng = random.Random(7)  # noqa: S311
    for _ in range(30):
        broken = bytearray(content)
        at = rng.randrange(len(content) - 400, len(content))
        broken[at] ^= 1 << rng.randrange(8)
        path = tmp_path / "broken"
        path.write_bytes(broken)
        reader = EventFile(tmp_path, path)
        problems = reader.problems
        try:
            assert len(read_all(reader)["loss"]) >= 9
        except Damaged as problem:
            problems = [str(problem)]
        assert ["damaged" in each for each in problems] == [True], at


def test_lengths_made_to_harm_are_not_believed(tmp_path: Path) -> None:
    length = (1 << 62).to_bytes(8, "little")
    path = tmp_path / "x.tfevents.1"
    path.write_bytes(length + masked_crc32c(length).to_bytes(4, "little") + b"x" * (2 << 20))

    assert EventFile(tmp_path, path).read() == ((), False)


def test_the_history_of_an_offline_run_of_wandb_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run.wandb"
    path.write_bytes(gzip.decompress(RECORDED.read_bytes()))  # written by wandb 0.31.0; one row is longer than a block

    found = read_all(WandbLog(tmp_path, path))

    assert found.keys() == {"loss", "train/acc", "bad"}
    assert found["loss"] == [(5 * i, 1 / (i + 1)) for i in range(40)]
    assert found["train/acc"][4] == (20, 0.1)


@pytest.mark.parametrize("flip", [8, 3000, 20_000])
def test_a_damaged_or_cut_file_of_wandb_does_no_harm(tmp_path: Path, flip: int) -> None:
    content = bytearray(gzip.decompress(RECORDED.read_bytes()))
    path = tmp_path / "run.wandb"
    path.write_bytes(content[:flip])
    reader = WandbLog(tmp_path, path)
    before = read_all(reader)
    path.write_bytes(content)
    after = read_all(reader)
    assert len(before.get("loss", [])) + len(after["loss"]) == 40

    content[flip] ^= 4
    path.write_bytes(content)
    with pytest.raises(Damaged, match="damaged at byte"):
        read_all(WandbLog(tmp_path, path))


def test_lightnings_csv_is_read_on_and_anew_where_it_was_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("epoch,step,train_loss\n0,9,0.5\n0,19,0.2")
    reader = CsvTable(tmp_path, path)
    first = read_all(reader)
    path.write_text("epoch,step,train_loss,val_loss\n0,9,0.5,\n0,19,0.25,\n0,19,,0.75\n")

    assert first == {"epoch": [(9, 0)], "train_loss": [(9, 0.5)]}
    assert read_all(reader) == {
        "epoch": [(9, 0), (19, 0), (19, 0)],
        "train_loss": [(9, 0.5), (19, 0.25)],
        "val_loss": [(19, 0.75)],
    }
    assert read_all(reader) == {}


@pytest.mark.parametrize(
    "text",
    [
        "epoch;loss;kind\n1;0.5;a\n2;0.25;b\n",
        "epoch\tloss\tkind\n1\t0.5\ta,b\n2\t0.25\tc\n",
        'epoch;"loss";k,l\n1;0.5;\n2;.25;\n',
    ],
)
def test_columns_of_a_table_may_be_separated_otherwise(tmp_path: Path, text: str) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text(text)

    assert read_all(CsvTable(tmp_path, path))["loss"] == [(1, 0.5), (2, 0.25)]


@pytest.mark.parametrize(
    ("text", "points"),
    [
        ('step,loss\n1,999.5\n2,"1,234.5"\n', [(1, 999.5), (2, 1234.5)]),
        ("# step,loss\n1,0.5\n# half\n2,0.25\n", [(1, 0.5), (2, 0.25)]),
        ("epoch,loss\n1,0.5\nepoch,loss\n2,0.25\n", [(1, 0.5), (2, 0.25)]),
        ("step,loss,acc\n1,0.5,9\nstep,acc,loss\n2,9,0.25\n", [(1, 0.5), (2, 0.25)]),  # a resumed program's
        ("step,loss\n1,0.5\nstep,acc, loss,lr\n2,9,0.25,\n", [(1, 0.5), (2, 0.25)]),
        ("acc,loss\n9,0.5\nloss,acc\n0.25,9\n", [(0, 0.5), (1, 0.25)]),
        ("epoch,loss\n[1],[a.u.]\n1,0.5\n2,N/A\n2,0.25\n", [(1, 0.5), (2, 0.25)]),
    ],
)
def test_numbers_of_tables_are_read_as_programs_write_them(tmp_path: Path, text: str, points: Points) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text(text)
    reader = CsvTable(tmp_path, path)

    found = read_all(reader)

    assert found["loss"] == points
    assert not found.keys() - {"loss", "acc"}
    assert not reader.problems


def test_numbers_without_names_are_no_table(tmp_path: Path) -> None:
    path = tmp_path / "run.csv"
    path.write_text("1,0.5\n2,0.25\n")

    with pytest.raises(Damaged, match="has to name the columns of numbers"):
        read_all(CsvTable(tmp_path, path))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("step,loss\n1,0.5\n2,*****\n", "loss: ***** is no number, and was left out"),
        ("step,loss,loss\n1,0.5,0.1\n", "several columns are called loss: the last of them is read"),
        (
            "step,loss\n1,0.5,\n2,0.4,0.9\n3,0.3,0.8\n",
            "a row of 3 cells below 2 names lost the others: 2,0.4,0.9",
        ),
        ("step,loss,date,note\n1,0.5,2026-01-01,a\n2,,2026-01-02,b\n3,-,,\n", None),
    ],
)
def test_a_value_of_a_table_that_is_left_out_is_told_of(tmp_path: Path, text: str, problem: str | None) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text(text)
    reader = CsvTable(tmp_path, path)

    read_all(reader)

    told = [one.partition(", as all")[0] for one in reader.problems]
    assert list(dict.fromkeys(told))[:1] == ([] if problem is None else [problem])


def test_a_last_line_without_its_end_counts_once_the_program_has_ended(
    tmp_path: Path, follow: Callable[..., MetricsFollower]
) -> None:
    work = tmp_path / "work"
    follower = follow("auto", "alone.jsonl", "comma.csv", "torn.csv", "torn.jsonl")
    for name, text in {
        "metrics.jsonl": '{"step": 1, "loss": 0.5}\n{"step": 2, "loss": 0.25}',
        "alone.jsonl": '{"acc": 0.9}',
        "metrics.csv": "step,error\n1,0.5\n2,0.25",
        "comma.csv": "step;wer\n1;0.5\n2;0.25",
        "torn.csv": "step,a,b\n1,2,3\n2,4",
        "torn.jsonl": '{"step": 1, "c": 0.5}\n{"step": 2, "c": 0.2',
    }.items():
        (work / name).write_text(text)

    follower.end(within_s=10, has_completed=True)

    points, told = journalled(tmp_path)
    assert points == {
        "loss": [(1, 0.5), (2, 0.25)],
        "acc": [(0, 0.9)],
        "error": [(1, 0.5), (2, 0.25)],
        "wer": [(1, 0.5), (2, 0.25)],
        "a": [(1, 2.0)],
        "b": [(1, 3.0)],
        "c": [(1, 0.5)],
    }
    assert "metrics_trouble" not in told


def test_a_last_row_that_a_killed_program_has_left_may_end_within_a_number(
    tmp_path: Path, follow: Callable[..., MetricsFollower]
) -> None:
    follower = follow("auto")
    (tmp_path / "work/metrics.csv").write_text("step,loss\n1,0.5\n2,12.")  # of 12.25
    (tmp_path / "work/metrics.jsonl").write_text('{"step": 1, "acc": 0.5}\n{"step": 2, "acc": 0.25}')

    follower.end(within_s=10, has_completed=False)

    assert journalled(tmp_path)[0] == {"loss": [(1, 0.5)], "acc": [(1, 0.5), (2, 0.25)]}


def test_json_lines_are_read_by_their_steps_or_numbered(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    rows: list[object] = [
        {"loss": 1, "step": 5, "time": 1795411133.5, "note": "text", "ok": True, "_private": 1},
        {"val": {"acc": 0.5}, "epoch": 2.0},
        "no object",
        {"loss": float("nan")},
        {"loss": 10**400},
    ]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n{broken\n" + "[" * 90_000 + "\n" + '{"loss": 3, "step"')
    reader = JsonLines(tmp_path, path)

    found = read_all(reader)

    assert found["val/acc"] == [(2, 0.5)]
    assert [step for step, _ in found["loss"]] == [5, 3]
    assert len(reader.problems) == 1


@pytest.mark.parametrize("kind", [CsvTable, JsonLines])
@pytest.mark.parametrize(("goes_on", "step"), [(True, 3), (False, 0)])
def test_a_table_that_goes_on_from_a_checkpoint_goes_on_counting(
    tmp_path: Path, kind: type[CsvTable | JsonLines], *, goes_on: bool, step: int
) -> None:
    """Else its rows would be those of the first steps once more, and stand for them, as those of a new begin are to."""
    path = tmp_path / "log"
    row = "{}\n" if kind is CsvTable else '{{"loss": {}}}\n'
    before = "loss\n" if kind is CsvTable else "\n"
    path.write_text(before + "".join(row.format(value) for value in (0.5, 0.25, 0.125)))
    reader = kind(tmp_path, path, goes_on=goes_on)
    reader.skip()
    with path.open("a") as file:
        file.write(row.format(0.0625))

    readings, _ = reader.read()

    assert [(reading.step, reading.value) for reading in readings] == [(step, 0.0625)]


@pytest.mark.parametrize("rows", ["0,0.5\n1,0.25\n2,0.125\n3,0.0625\n", "0,9\n1,8\n", "0,9\n1,8\n2,7\n"])
def test_a_table_that_was_there_and_is_written_anew_is_read_from_its_begin(tmp_path: Path, rows: str) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("epoch,loss\n0,9\n1,8\n")
    os.utime(path, ns=(1, 1))
    reader = CsvTable(tmp_path, path)
    reader.skip()
    path.write_text(f"epoch,loss\n{rows}")

    values = [value for _, value in read_all(reader)["loss"]]

    assert values == ([7] if rows.endswith("2,7\n") else [float(row.split(",")[1]) for row in rows.split()])
    assert read_all(reader) == {}


def test_a_row_that_was_cut_off_by_the_end_of_an_attempt_is_left_there(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("loss\n0.5\n0.2")
    reader = CsvTable(tmp_path, path, goes_on=True)
    reader.skip()
    with path.open("a") as file:
        file.write("\n0.125\n")

    readings, _ = reader.read()

    assert [(reading.step, reading.value) for reading in readings] == [(2, 0.125)]


def test_the_state_of_a_trainer_is_read_once_each_time_that_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    history = [{"epoch": 0.5, "loss": 0.75, "step": 10}, {"epoch": 1.0, "eval_loss": 0.5, "step": 20}]
    reader = JsonFile(tmp_path, path)
    path.write_text(json.dumps({"log_history": history[:1]}))
    first = read_all(reader)
    path.write_text(json.dumps({"log_history": history}))

    assert first == {"epoch": [(10, 0.5)], "loss": [(10, 0.75)]}
    assert read_all(reader) == {"epoch": [(20, 1.0)], "eval_loss": [(20, 0.5)]}


@pytest.mark.parametrize(
    ("content", "points"),
    [
        ('{"acc": 0.5, "of": "x", "test": {"loss": 1}}', {"acc": [(0, 0.5)], "test/loss": [(0, 1.0)]}),
        ('{"epoch": 3, "acc": 0.5}', {"acc": [(3, 0.5)]}),
        ('{"acc": 0.5, "classes": ["a", "b"]}', {"acc": [(0, 0.5)]}),
        ('[{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.4}, 3]', {"loss": [(1, 0.5), (2, 0.4)]}),
        ('{"it": 19, "cycle": 2, "loss": 0.5}\n', {"loss": [(19, 0.5)], "cycle": [(19, 2.0)]}),
        ('{"loss": 0.5', {}),
        ('{\n"loss": 0.5,', {}),
        ('{"loss": 0.5}\nend\n{"loss": 0.4}\n', {}),
        ("3", {}),
    ],
)
def test_numbers_that_a_program_leaves_as_json_are_read(tmp_path: Path, content: str, points: Points) -> None:
    path = tmp_path / "results.json"
    path.write_text(content)
    reader = JsonFile(tmp_path, path)

    assert read_all(reader) == points
    assert read_all(reader) == {}


def test_numbers_that_replace_others_come_after_them(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    reader = JsonFile(tmp_path, path)
    path.write_text('{"acc": 0.5}')
    reader.skip()  # as it was submitted
    read = []
    for value in (0.75, 0.875):
        path.write_text(json.dumps({"acc": value}))
        read.append(read_all(reader))

    assert read == [{"acc": [(0, 0.75)]}, {"acc": [(1, 0.875)]}]


@pytest.mark.parametrize("word", ["tensorbord", "/etc/metrics.csv", "../m.jsonl", "notes.md"])
def test_what_cannot_be_followed_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match=r"workload\.metrics_from"):
        check_metric_files(word)


# Following


@pytest.fixture
def follow(tmp_path: Path) -> Iterator[Callable[..., MetricsFollower]]:
    """Begin to follow a folder `work`."""
    (tmp_path / "work").mkdir()
    begun: list[MetricsFollower] = []

    def begin(*wanted: str) -> MetricsFollower:
        journals = tmp_path / "journal"
        journal = JournalWriter(str(journals), run="r", attempt=0, writer=WRITER)
        follower = MetricsFollower(
            root=tmp_path / "work", wanted=wanted or ("auto",), journal=journal, journals=journals, attempt=0
        )
        follower.look()
        begun.append(follower)
        return follower

    yield begin
    for follower in begun:
        follower.journal.close()


def journalled(tmp_path: Path) -> tuple[Points, dict[str, list[dict[str, Any]]]]:
    points: Points = {}
    told: dict[str, list[dict[str, Any]]] = {}
    for path in sorted((tmp_path / "journal").glob(f"*-{WRITER}.jsonl")):
        chunk = read_journal(path)
        assert chunk.bad_lines == 0
        for record in chunk.records:
            if isinstance(record, Metrics):
                for name, value in record.values.items():
                    points.setdefault(name, []).append((record.step, value))
            elif isinstance(record, Event):
                told.setdefault(record.name, []).append(dict(record.details))
    return points, told


def test_of_files_of_tensorboard_the_one_begun_first_comes_first_whatever_its_folder_is_called(tmp_path: Path) -> None:
    for at, folder in enumerate(("zebra", "mole", "ant")):
        (tmp_path / folder).mkdir()
        event = b"\x09" + struct.pack("<d", 1795411133.5 + at / 100)
        (tmp_path / folder / f"events.out.tfevents.1795411133.host.1.{at}").write_bytes(bytes(12) + event)
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "events.out.tfevents.1795411133.host.1.9").touch()

    found = sorted(sources_in(tmp_path, ["auto"]), key=lambda source: begun_at(source, tmp_path))

    assert [source.label for source in found] == ["zebra", "mole", "ant", "begun"]


def test_a_table_of_metrics_is_read_whatever_it_is_called(
    tmp_path: Path, follow: Callable[..., MetricsFollower]
) -> None:
    follower = follow("auto")
    for name, text in {
        "training.log": "epoch,accuracy,loss\n0,0.5,0.25\n",  # Keras' CSVLogger
        "out/seed1.csv": "step,reward\n1,9\n",
        "predicted.csv": "id,score\n1,0.5\n",
        "path.csv": "step,x,y\n1,0.5,0.25\n",
        "notes.txt": "a,b\n1,2\n",
        "said.log": "epoch, loss\nnone, yet\n",
        "run.log": "epoch 1, loss 0.5\n1,2\n",
        "begun.txt": "epoch,val_loss\n",
    }.items():
        (tmp_path / "work" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "work" / name).write_text(text)

    follower.end(within_s=10, has_completed=True)

    points, told = journalled(tmp_path)
    assert points == {"accuracy": [(0, 0.5)], "loss": [(0, 0.25)], "reward": [(1, 9.0)]}
    assert "metrics_trouble" not in told


def test_values_come_while_the_program_runs_and_the_last_at_its_end(
    tmp_path: Path, follow: Callable[..., MetricsFollower]
) -> None:
    follower = follow()
    path = tmp_path / "work" / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": 0.5}\n')
    end = time.monotonic() + 60
    while not journalled(tmp_path)[0]:
        assert time.monotonic() < end
        follower.read_new()
        time.sleep(0.05)
    with path.open("a") as file:
        file.write('{"step": 2, "loss": 0.25}\n')

    follower.end(within_s=10, has_completed=True)

    points, told = journalled(tmp_path)
    assert points == {"loss": [(1, 0.5), (2, 0.25)]}
    assert told["metrics_read"] == [{"jsonl": {"metrics": 1, "values": 2}, "told_elsewhere": []}]


def test_what_was_there_before_is_of_no_interest(tmp_path: Path, follow: Callable[..., MetricsFollower]) -> None:
    work = tmp_path / "work"
    work.mkdir(exist_ok=True)
    (work / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5}\n')
    (work / "old").mkdir()
    (work / "old" / "metrics.csv").write_text("step,loss\n1,0.5\n")
    follower = follow()
    with (work / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "loss": 0.25}\n')

    follower.end(within_s=10, has_completed=True)

    assert journalled(tmp_path)[0] == {"loss": [(2, 0.25)]}


def test_of_two_writers_of_a_metric_one_counts(tmp_path: Path, follow: Callable[..., MetricsFollower]) -> None:
    follower = follow()
    with JournalWriter.open(str(tmp_path / "journal"), run="r", writer="rank0") as client:
        client.metrics(0, {"loss": 0.125, 'odd "name"': 1.0})
    (tmp_path / "work" / "metrics.jsonl").write_text('{"step": 1, "loss": 9, "acc": 0.5, "odd \\"name\\"": 2}\n')
    (tmp_path / "work" / "metrics.csv").write_text("step,loss,acc,lr\n1,9,0.75,0.1\n")

    follower.end(within_s=10, has_completed=True)

    points, told = journalled(tmp_path)
    assert points == {"acc": [(1, 0.5)], "lr": [(1, 0.1)]}
    assert told["metrics_read"][0]["told_elsewhere"] == ["acc", "loss", 'odd "name"']


def test_trainings_beside_each_other_keep_their_names_apart(
    tmp_path: Path, follow: Callable[..., MetricsFollower]
) -> None:
    follower = follow()
    for number in range(2):
        folder = tmp_path / "work" / "lightning_logs" / f"version_{number}"
        folder.mkdir(parents=True)
        (folder / "metrics.csv").write_text(f"step,loss\n1,{number}\n")

    follower.end(within_s=10, has_completed=True)

    assert journalled(tmp_path)[0] == {"loss": [(1, 0.0)], "version_1/loss": [(1, 1.0)]}


def test_traps_are_stepped_around(tmp_path: Path, follow: Callable[..., MetricsFollower]) -> None:
    work = tmp_path / "work"
    secret = tmp_path / "secret.jsonl"
    secret.write_text('{"step": 1, "secret": 1}\n')
    follower = follow("auto", "gone/*.csv")
    os.mkfifo(work / "metrics.jsonl")
    (work / "log.jsonl").symlink_to(secret)
    (work / "loop").symlink_to(work)
    (work / "x.tfevents.1").write_bytes(b"\xff" * 5000)
    (work / "metrics.csv").write_bytes(b"\0" * (3 << 20))
    (work / "trainer_state.json").mkdir()
    (work / "train_log.jsonl").write_text("\n".join(json.dumps({f"m{i}": i, "n" * 999: 1}) for i in range(600)))
    begun = time.monotonic()

    follower.end(within_s=10, has_completed=True)

    points, told = journalled(tmp_path)
    assert time.monotonic() - begun < 10
    assert len(points) == 500
    assert "secret" not in points
    files = [trouble["file"] for trouble in told["metrics_trouble"]]
    assert {"x.tfevents.1", "metrics.csv", "train_log.jsonl", "gone/*.csv"} <= set(files)
    assert len(files) <= 20


def test_the_agent_follows_what_its_program_writes_even_if_that_is_killed(make_run: MakeRun, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "metrics.csv").write_text("step,old\n1,1\n")  # which somebody has committed
    uid = "20261121-083015-222aaaaa"
    cwd = RunDir(tmp_path / "home" / "runs" / "default" / uid).work / "mine"
    program = """import os, sys
os.makedirs("out"); open("out/metrics.jsonl", "w").write('{"step": 7, "loss": 0.5}\\n')
print("epoch 1: train 0.5, val 0.25;"); print("epoch 2: val acc 70%", file=sys.stderr, flush=True)
sys.stdout.flush(); os.kill(os.getpid(), 9)"""
    run_dir = make_run(
        program,
        r"workload.metrics=[{pattern: 'epoch (?P<step>\d+): train (?P<train>\S+) val (?P<val>\S+)'},"
        r"{pattern: 'acc (?P<value>\S+)', name: acc}, {pattern: 'loss=(?P<loss>\S+)'}]",
        uid=uid,
        cwd=str(cwd),
        staging=Staging(code=str(code), project="mine"),
    )

    assert agent(str(run_dir.path)).returncode != 0

    found: dict[str, list[tuple[int, float]]] = {}
    for path in run_dir.journal_files():
        for record in read_journal(path).records:
            if isinstance(record, Metrics):
                for name, value in record.values.items():
                    found.setdefault(name, []).append((record.step, value))
    assert found == {"loss": [(7, 0.5)], "train": [(1, 0.5)], "val": [(1, 0.25)], "acc": [(0, 70.0)]}
    (trouble,) = told(run_dir, "metrics_trouble")
    assert trouble["problem"].startswith("no line matched the rule loss=(?P<loss>")
    assert trouble["problem"].endswith(", or none with a number")
    assert told(run_dir, "metrics_read") == [{"jsonl": {"metrics": 1, "values": 1}, "told_elsewhere": []}]


@pytest.mark.parametrize(("leaves", "steps"), [(75, [0, 1, 2, 3]), (1, [0, 1, 0, 1])])
def test_an_attempt_numbers_rows_on_from_the_checkpoint_of_the_one_before(
    make_run: MakeRun, tmp_path: Path, leaves: int, steps: list[int]
) -> None:
    (tmp_path / "code").mkdir()
    uid = "20261121-083015-222aaaaa"
    program = f"""import os, sys
is_first = not os.path.exists("metrics.csv")
with open("metrics.csv", "a") as file:
    file.write("loss\\n" * is_first + "0.5\\n0.25\\n")
print("acc 0.5\\nacc 0.25" if is_first else "acc 0.125", flush=True)
sys.exit({leaves} if is_first else 0)"""
    run_dir = make_run(
        program,
        "workload.metrics=[{name: acc}]",
        uid=uid,
        cwd=str(RunDir(tmp_path / "home" / "runs" / "default" / uid).work / "mine"),
        staging=Staging(code=str(tmp_path / "code"), project="mine"),
    )

    agent(str(run_dir.path))
    agent(str(run_dir.path))

    assert [end["exit_code"] for end in told(run_dir, "attempt_ended")] == [leaves, 0]
    records = [record for path in sorted(run_dir.journal_files()) for record in read_journal(path).records]
    assert [record.step for record in records if isinstance(record, Metrics) and "loss" in record.values] == steps
    (trouble,) = told(run_dir, "metrics_trouble")
    assert trouble["problem"].startswith("2 values of acc of attempt 0 are not counted: printed without a step")


def test_a_large_file_is_read_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with path.open("w") as file:
        file.writelines(f'{{"step": {step}, "loss": 0.5}}\n' for step in range(100_000))
    reader = JsonLines(tmp_path, path)

    first, more = reader.read()

    assert more
    assert 0 < len(first) < 50_000
    assert len(first) + len(read_all(reader)["loss"]) == 100_000
    shutil.rmtree(tmp_path)
    with pytest.raises(OSError, match=r"No such file"):
        reader.read()


def test_a_rule_that_finds_a_number_in_each_letter_of_a_line_fills_no_disk(make_run: MakeRun) -> None:
    rule = r"workload.metrics=[{pattern: '(?P<value>\d)', name: digit}]"
    run_dir = make_run("print('1' * 500_000); print('2' * 1000)", rule)

    assert agent(str(run_dir.path)).returncode == 0

    points = [one for path in run_dir.journal_files() for one in read_journal(path).records if isinstance(one, Metrics)]
    assert [one.values["digit"] for one in points] == [1.0] * 1000 + [2.0] * 1000
    (trouble,) = told(run_dir, "metrics_trouble")
    assert trouble["problem"].startswith("a line has more than 16384 characters")


def test_a_history_in_the_place_of_another_trainings_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    reader = JsonFile(tmp_path, path)
    found = []
    for first in (0.9, 0.8):
        path.write_text(json.dumps({"log_history": [{"step": 5, "loss": first}, {"step": 10, "loss": first / 2}]}))
        found.append(read_all(reader))

    assert found == [{"loss": [(5, 0.9), (10, 0.45)]}, {"loss": [(5, 0.8), (10, 0.4)]}]


def test_a_history_that_each_checkpoint_repeats_is_one_training(
    tmp_path: Path, follow: Callable[..., MetricsFollower]
) -> None:
    rows = [{"step": step, "loss": 10 - step, "grad_norm": math.nan} for step in range(1, 9)]
    follower = follow()
    for of in (4, 8, 12):  # checkpoint-12 is read first
        folder = tmp_path / "work" / "out" / f"checkpoint-{of}"
        folder.mkdir(parents=True)
        (folder / "trainer_state.json").write_text(json.dumps({"log_history": rows[:of]}))

    follower.end(within_s=10, has_completed=True)

    points, told = journalled(tmp_path)
    assert points["loss"] == [(step, 10 - step) for step in range(1, 9)]
    assert len(points["grad_norm"]) == 8
    assert told.keys() == {"metrics_read"}


@pytest.mark.parametrize(
    ("printed", "problems"),
    [
        ("epoch 1/3 acc 91.5% loss 0,21 time 0:01 lr -", [": one was printed with a comma for the decimal point"]),
        ("epoch 1/3 acc 91.5% loss 0.21 time 0:01 lr -", [""]),
        ("epoch 1/3 acc - loss 0.21 time 3 lr -\nepoch 2/3 acc 0.5 loss 0.2 time 3 lr -", []),
        ("epoch 1/3 acc 1 loss 999.5 time 3 lr -\nepoch 2/3 acc n/a loss 1,234 time 3 lr -", ["loss (1,234)"]),
        ("epoch 1/3 acc 1 loss 9.5 time 3 lr -\nepoch 2/3 acc 1 loss ***** time 3 lr -", ["loss (*****)"]),
        ("epoch 1/3 acc 1 loss 0.5e-3 time 3 lr 1\nepoch 2/3 acc 1 loss nan time 3 lr -", []),
    ],
)
def test_a_group_of_a_rule_that_never_was_a_number_is_told_of(
    tmp_path: Path, follow: Callable[..., MetricsFollower], printed: str, problems: list[str]
) -> None:
    out = tmp_path / "out"
    out.write_text(f"{printed}\n")
    pattern = r"epoch (?P<epoch>\S+) acc (?P<acc>\S+) loss (?P<loss>\S+) time (?P<time>\S+) lr (?P<lr>\S+)"
    journal = JournalWriter(str(tmp_path / "journal"), run="r", attempt=0, writer="agent")
    found = FoundMetrics(
        rules=[MetricRule(pattern=pattern)], printed=[out], journal=journal, files=follow("csv"), is_again=False
    )

    found.start()
    found.end(within_s=10, has_completed=True)
    journal.close()

    told = [
        one.details["problem"]
        for path in (tmp_path / "journal").glob("*-agent.jsonl")
        for one in read_journal(path).records
        if isinstance(one, Event) and one.name == "metrics_trouble"
    ]
    names = "loss, time" if "0,21" in printed else "time"
    some = f"the rule {pattern} found values that are no numbers, and were left out, of "
    never = f"the rule {pattern} found no number for {names}"
    assert told == [some + more if more.startswith("loss") else never + more for more in problems]
