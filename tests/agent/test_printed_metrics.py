import math
import time
from pathlib import Path

import pytest

from hpcml.agent.metrics.follow import MetricsFollower
from hpcml.agent.metrics.printed import FoundMetrics, Picked, StdoutScanner, loss_that_ended, problems_of
from hpcml.model.metric_sources import MetricRule
from hpcml.runs.journal import Event, Metrics, read_journal
from hpcml_client.journal import JournalWriter

LOSS = MetricRule(pattern=r"step (?P<step>\d+) loss[ =](?P<value>\S+)", name="loss")


def scanner(path: Path, *rules: MetricRule) -> StdoutScanner:
    return StdoutScanner(path=path, rules=rules or (LOSS,))


def test_a_rule_picks_value_and_step(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("hello\nstep 10 loss 0.5\nstep 20 loss=0.25 lr 1\n")

    assert list(scanner(out).scan()) == [
        Picked(name="loss", value=0.5, step=10),
        Picked(name="loss", value=0.25, step=20),
    ]


def test_a_line_that_is_still_being_printed_waits_for_its_end(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("step 1 loss 0.5\nstep 2 loss 0.")
    reading = scanner(out)

    first = list(reading.scan())
    with out.open("a") as file:
        file.write("25\n")

    assert [picked.step for picked in first] == [1]
    assert list(reading.scan()) == [Picked(name="loss", value=0.25, step=2)]


def test_what_a_bar_of_progress_prints_over_itself_is_read_while_it_does_and_no_number_is_cut(tmp_path: Path) -> None:
    out = tmp_path / "out"
    values = [1 + number / 2**20 for number in range(150_000)]
    out.write_text("".join(f"\r{'=' * 20} step {step} loss {value!r}" for step, value in enumerate(values)))
    reading = scanner(out)

    live = [picked for _ in range(3) for picked in reading.scan()]
    last = list(reading.scan(to_the_end=True))

    assert out.stat().st_size > 4 << 20
    assert [picked.value for picked in live] == values[:-1]
    assert [picked.value for picked in last] == values[-1:]


def test_lines_that_a_program_draws_over_each_other_are_read_while_it_does(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("".join(f"\x1b[2K\x1b[1Gstep {step} \x1b[1mloss\x1b[0m {step / 8}" for step in range(4)))
    reading = scanner(out)

    live = [*reading.scan(), *reading.scan()]
    last = [*reading.scan(to_the_end=True)]

    assert [(picked.step, picked.value) for picked in live] == [(0, 0.0), (1, 0.125), (2, 0.25)]
    assert [(picked.step, picked.value) for picked in last] == [(3, 0.375)]


def test_the_last_line_counts_without_its_newline_once_all_is_said(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("step 2 loss 0.25")

    assert list(scanner(out).scan(to_the_end=True)) == [Picked(name="loss", value=0.25, step=2)]


def test_names_may_come_from_the_line_and_are_numbered_where_no_step_is_told(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("acc: 0.5\nf1: 0.1\nacc: 0.6\n")

    picked = list(scanner(out, MetricRule(pattern=r"(?P<name>\w+): (?P<value>\S+)")).scan())

    assert [(p.name, p.step, p.value) for p in picked] == [("acc", 0, 0.5), ("f1", 0, 0.1), ("acc", 1, 0.6)]
    assert all(p.is_counted for p in picked)


@pytest.mark.parametrize(("text", "check"), [("nan", math.isnan), ("inf", math.isinf), ("1e-3", lambda v: v == 1e-3)])
def test_values_are_read_as_python_reads_them(tmp_path: Path, text: str, check: object) -> None:
    out = tmp_path / "out"
    out.write_text(f"step 1 loss {text}\n")

    (picked,) = scanner(out).scan()

    assert callable(check)
    assert check(picked.value)


def test_a_value_counts_in_whatever_colour_it_is_printed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    best, bar = "\x1b[1;32m0.25\x1b[0m", "\x1b[A\r\x1b[2K"  # green where it is the best so far, below a bar
    out.write_text(f"step 1 loss 0.5\n\x1b[36mstep \x1b[33m2\x1b[0m loss {best}\n{bar}step 3 loss=0.75\x1b[K\n")

    assert [(picked.step, picked.value) for picked in scanner(out).scan()] == [(1, 0.5), (2, 0.25), (3, 0.75)]


def test_commas_between_groups_of_three_digits_are_left_out_and_one_for_a_point_is_not_guessed_at(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    out.write_text("step 1 loss 975,159.0\nstep 1,000 loss -17,000,000,\nstep 3 loss 0,123\nstep 4 loss 1,234\n")
    rule = MetricRule(pattern=r"step (?P<step>\S+) loss (?P<value>\S+)", name="loss")

    assert [(picked.step, picked.value) for picked in scanner(out, rule).scan()] == [(1, 975159.0), (1000, -17000000.0)]


def test_one_comma_is_between_groups_in_a_rate_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("Runtime: 1,234 s\nLookups/s: 975,159\n")
    rules = [
        MetricRule(pattern=r"Runtime: (?P<value>\S+)", name="runtime_s"),
        MetricRule(pattern=r"Lookups/s: (?P<value>\S+)", name="lookups_per_s"),
    ]

    assert [(picked.name, picked.value) for picked in scanner(out, *rules).scan()] == [("lookups_per_s", 975159.0)]


def test_what_is_no_number_is_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("step 1 loss oops\nstep 2 loss 1\n")

    assert [picked.step for picked in scanner(out).scan()] == [2]


def test_bytes_that_are_no_text_and_endless_lines_do_no_harm(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_bytes(b"\xff\xfe\x00\n" + b"x" * (9 << 20) + b"\nstep 3 loss 1\n")

    assert [picked.step for picked in scanner(out).scan(to_the_end=True)] == [3]


def test_without_rules_nothing_is_read(tmp_path: Path) -> None:
    assert list(StdoutScanner(path=tmp_path / "absent", rules=()).scan()) == []


def test_a_value_that_a_bar_draws_over_itself_is_one(tmp_path: Path) -> None:
    log = tmp_path / "log"
    rule = MetricRule(pattern=r"loss=(?P<value>[0-9.]+)", name="loss")
    bar = "\r  0%| 0/3 [00:00]\r  0%| 0/3 [loss=0.5]\r 33%| 1/3 [loss=0.5]\r 33%| 1/3 [loss=0.4]"  # as tqdm draws it
    log.write_text(bar)
    follower = scanner(log, rule)

    first = list(follower.scan())
    log.write_text(f"{bar}\r 66%| 2/3 [loss=0.4]\r100%| 3/3 [loss=0.4]\n  0%| 0/3 [loss=0.4]\nloss=0.4 loss=0.4\n")
    values = [(each.value, each.step) for each in [*first, *follower.scan(to_the_end=True)]]

    assert values == [(0.5, 0), (0.4, 1), (0.4, 2), (0.4, 3), (0.4, 4)]  # lines of their own count each


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        (["Epoch 3: train_loss=nan val_acc=0.1000", "done in 3 s"], "train_loss"),
        (["Loss is NaN, stopping training"], "loss"),
        (["step 10 | loss: -inf | lr 0.1"], "loss"),
        (["{'epoch': 2, 'val_loss': nan}"], "val_loss"),
        (["[10] test perplexity nan", "[20] test loss 0.5"], "test perplexity"),
        (["loss nan", "loss 0.5"], None),
        (["loss inf at first", "best loss: 0.3", "loss 0.4"], None),
        (["Initial best loss: inf", "epoch 1 loss 0.5"], None),
        (["{'min_val_loss': Infinity}", "epoch 1 loss 0.5"], None),
        (["stops if loss is nan", "epoch 1 loss 0.5"], None),
        (["batch loss nan, skipped", "epoch 1 train loss 0.5"], None),
        (["val_loss nan", "val_loss 0.5", "val_loss nan"], None),  # validated in every other epoch
        (["loss nan", "loss 0.5", "loss nan", "loss nan"], "loss"),
        (["loss scale inf", "no loss of information", "lossless nan", "grad norm nan", "losses 3"], None),
        (["loss: tensor(0.5)", "loss: tensor(nan, grad_fn=<MeanBackward0>)"], "loss"),
        (["loss 0.5, loss_ms nan", "packet loss inf", "loss_ratio: nan"], None),
        (["-" * 65536, "a-" * 32768, "a " * 32768], None),
    ],
)
def test_a_loss_that_was_printed_as_no_number_at_the_last_is_known_by_its_name(
    lines: list[str], name: str | None
) -> None:
    assert loss_that_ended(lines) == name


def test_numbers_of_libraries_are_read_as_they_show_themselves(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text(
        "step 1 loss tensor(0.5, grad_fn=<MeanBackward0>)\nstep 2 loss np.float32(0.25)\nstep 3 loss tensor([0.125])\n"
        "step 4 loss tensor([0.1, 0.2])\nstep 5 loss tensor(nan, device='cuda:0')\nstep 6 loss of(7)\n"
    )
    reading = scanner(out)

    found = {picked.step: picked.value for picked in reading.scan()}

    assert [found.get(step) for step in (1, 2, 3, 4, 6)] == [0.5, 0.25, 0.125, None, None]
    assert math.isnan(found[5])


def test_so_many_correct_out_of_so_many_are_their_share(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("Accuracy: 9421/10000 (94%)\nAccuracy: 3 / 4\nAccuracy: 5/0\nAccuracy: 7/5\nbatch: 3/10\nFold 2/5\n")
    rules = [
        MetricRule(pattern=r"Accuracy: (?P<value>\d+ ?/ ?\d+)", name="acc"),
        MetricRule(pattern=r"batch: (?P<value>\S+)", name="batch"),
        MetricRule(pattern=r"Fold (?P<fold>\S+)"),
    ]

    found = list(StdoutScanner(path=out, rules=rules).scan())

    assert [(picked.name, picked.value) for picked in found] == [("acc", 0.9421), ("acc", 0.75)]


def test_a_name_alone_takes_no_time_over_a_hostile_line(tmp_path: Path) -> None:
    out = tmp_path / "out"
    lines = ["step 1 " * 9000, "loss " * 20_000, "loss 1" * 9000, f"loss {'1' * 90_000}x", f"loss {'1,1' * 30_000}x"]
    out.write_text("\n".join([*lines, f"loss 1{'/1' * 30_000}", f"step {'1,' * 30_000}.5", "a," * 30_000, "loss=0.5"]))

    reading = scanner(out, MetricRule(name="loss"))

    assert [picked.value for picked in reading.scan(to_the_end=True)][-1] == 0.5


def test_the_rest_of_a_line_that_never_ends_is_left_out_and_said(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("step 1 loss 0.5 acc 0.5\n" + "step 1 " * 30_000 + "\nstep 2 loss 0.25 acc 0.75\n")
    rules = (LOSS, MetricRule(pattern=r"step (?P<step>\d+).*?acc (?P<value>\S+)", name="acc"))
    reading = StdoutScanner(path=out, rules=rules)

    found = list(reading.scan())

    assert [(each.name, each.step, each.value) for each in found] == [
        *(("loss", 1, 0.5), ("acc", 1, 0.5)),
        *(("loss", 2, 0.25), ("acc", 2, 0.75)),
    ]
    assert list(problems_of(rules, [reading])) == ["a line has more than 16384 characters: the rest of it was left out"]


def test_a_pattern_that_takes_for_ever_costs_its_values_and_nothing_else(tmp_path: Path) -> None:
    path, journals = tmp_path / "0.out", tmp_path / "journal"
    path.write_text("loss 0.5\n" + "a" * 60 + "!\n")
    rules = [MetricRule(pattern=r"loss (?P<loss>\S+)"), MetricRule(pattern=r"(a+)+ (?P<value>\S+)", name="never")]
    with JournalWriter.open(str(journals), run="r") as journal:
        files = MetricsFollower(root=tmp_path, wanted=(), journal=journal, journals=journals, attempt=0)
        found = FoundMetrics(rules=rules, printed=[path], journal=journal, files=files)
        found.look()
        found.start()
        time.sleep(1)
        began = time.monotonic()

        found.end(within_s=0.1, has_completed=True)

    assert time.monotonic() - began < 5
    records = [record for journal in journals.iterdir() for record in read_journal(journal).records]
    assert [record.values for record in records if isinstance(record, Metrics)] == [{"loss": 0.5}]
    (trouble,) = [record.details["problem"] for record in records if isinstance(record, Event)]
    assert trouble == "what was left was not read: reading it took longer than 0.1 s"
