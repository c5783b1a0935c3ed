"""What is remarked on at the end of ``hpcml run``."""

from dataclasses import replace

from hpcml.report.run_end import RunEnd, remarks, written

RUN = RunEnd(uid="20261121-083015-222abcde", has_completed=True, is_own=True, objective="acc", metrics=("acc",))


def test_runs_of_which_all_is_well_are_not_remarked_on() -> None:
    assert list(remarks([RUN, replace(RUN, has_completed=False, metrics=())], "")) == []
    assert written([RUN]) is None


def test_a_recipe_reports_its_metric_and_is_never_asked_for_another() -> None:
    assert list(remarks([replace(RUN, is_own=False, metrics=("loss",))], "")) == []


def test_each_thing_that_looks_wrong_is_a_line() -> None:
    runs = [
        replace(RUN, metrics=()),
        replace(RUN, metrics=("epoch", "val_loss")),
        replace(RUN, unread=("the rule for loss matched no line",), reason="it said ValueError: 3 layers"),
        replace(RUN, touched=("/home/ada/model.pt",), left_behind="1 process (sleep 9)"),
    ]

    lines = list(remarks(runs, "say workload.metrics"))

    told = "\n".join(lines)
    assert len(lines) == 6
    for words in (
        "1 of 4 runs reported no metric, so hpcml compare has nothing to judge them by: say workload.metrics",
        "1 of 4 runs reported no acc, their objective.metric, but val_loss, epoch: objective.metric=NAME",
        "in 1 of 4 runs the rule for loss matched no line: hpcml logs 222abcde",
        "/home/ada/model.pt changed while 1 of these runs",
        "1 of 4 runs completed, but it said ValueError: 3 layers; hpcml show 222abcde",
        "1 of 4 runs ended with their program while it had left 1 process (sleep 9) at work",
    ):
        assert words in told


def test_reasons_of_completed_runs_that_differ_in_numbers_alone_are_told_once() -> None:
    odd = [replace(RUN, reason=f"it said ValueError: {n} layers") for n in range(5)]
    failed = replace(RUN, has_completed=False, reason="exit status 1")

    (line,) = remarks([*odd, RUN, failed], "")

    assert line == "5 of 7 runs completed, but it said ValueError: 0 layers; hpcml show 222abcde"


def test_problems_of_metrics_beyond_the_third_are_counted() -> None:
    odd = [replace(RUN, unread=tuple(f"file{n}: odd" for n in range(5)))]

    *_, last = remarks(odd, "")

    assert last == f"2 more such problems of metrics: hpcml show {RUN.uid}"


def test_files_that_were_written_are_counted_over_the_runs_that_wrote_any() -> None:
    line = written([replace(RUN, written=(2, 10)), RUN, replace(RUN, written=(0, 0))])

    assert line is not None
    assert line.startswith("1 run ")
    assert line.endswith("hpcml show --files 20261121-083015-222abcde")


def test_another_precision_than_the_one_asked_for_is_told_once_for_all_runs_alike() -> None:
    asked = replace(RUN, requested="amp_bf16", effective="not used(fp32)")
    known = [
        RUN,
        replace(RUN, requested="fp32", effective="fp32"),
        replace(RUN, requested="tf32"),
        replace(RUN, requested="tf32", effective="unknown"),
        replace(RUN, effective="mixed(60 % fp32, 40 % bf16: body)"),
        replace(asked, has_completed=False),
    ]

    (line,) = remarks([*known, asked, asked], "")

    assert line == "2 of 8 runs were to compute in amp_bf16, and effective is not used(fp32): hpcml show 222abcde"


def test_of_many_precisions_three_are_told_and_the_rest_counted() -> None:
    runs = [replace(RUN, requested="tf32", effective=f"mixed({share} % fp32)") for share in (10, 20, 30, 40, 50)]

    *told, last = remarks(runs, "")

    assert len(told) == 3
    assert last == "2 more did not compute in the precision that was asked for: hpcml runs"
