from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from recorded_runs import FACTS, arm, run, texts

from hpcml.analysis.compare.comparison import compare
from hpcml.analysis.compare.factor import natural
from hpcml.analysis.compare.result import ComparisonRequest
from hpcml.errors import ComparisonError
from hpcml.model.records import RunRecord, Usage
from hpcml.model.state import State

VALUES = [0.90, 0.91, 0.92]


def arms(**of_the_second: Any) -> list[RunRecord]:  # noqa: ANN401
    return arm("fp32", VALUES) + arm("tf32", VALUES, **of_the_second)


@pytest.mark.parametrize(
    ("key", "value"),
    [("training.batch_size", 128), ("training.learning_rate", 0.1), ("resources.nodes", 2), ("workload.env.X", "1")],
)
def test_arms_that_always_differ_in_a_second_setting_are_refused_with_its_values(key: str, value: object) -> None:
    with pytest.raises(ComparisonError) as caught:
        compare(arms(params={key: value}), {})

    message = str(caught.value)
    assert caught.value.exit_code == 2
    assert message.startswith("no two runs differ in precision alone:\n")
    assert "  tf32: model=digits_cnn, data=digits, " in message
    assert f", container=none, {key}={value}\n" in message
    assert f"--allow {key}" in message


@pytest.mark.parametrize(("key", "value"), [("training.batch_size", 128), ("workload.env.X", "1")])
def test_a_second_setting_makes_cells_that_say_in_what_they_differ(key: str, value: object) -> None:
    elsewhere = [replace(r, uid=f"{r.uid}-x", params={**r.params, key: value}) for r in arms()]

    cells = compare(arms() + elsewhere, {}).cells

    assert [cell.where[key] for cell in cells] == sorted(
        [str(value), str(arms()[0].params.get(key, "not set"))], key=natural
    )
    assert all(len(cell.rows) == 2 and cell.confounders == () for cell in cells)
    assert all(row.n_ok == 3 for cell in cells for row in cell.rows)


def test_a_setting_that_is_the_same_everywhere_is_in_no_cells_name() -> None:
    assert "training.batch_size" not in compare(arms(), {}).cells[0].where


def test_a_setting_may_be_mixed_by_name_and_is_then_a_confounder() -> None:
    cell = compare(
        arms(params={"training.batch_size": 128}), {}, ComparisonRequest(allow=("training.batch_size",))
    ).cells[0]

    assert [(d.key, d.kind) for d in cell.confounders] == [("training.batch_size", "setting")]
    assert cell.rows[1].difference is not None


def test_allowing_one_fact_allows_no_other() -> None:
    runs = arms(facts={"gpu_driver": "580", "torch": "2.12"})

    with pytest.raises(ComparisonError, match="torch") as caught:
        compare(runs, {}, ComparisonRequest(allow=("driver",)))

    assert "gpu_driver" not in str(caught.value)
    assert [d.key for d in compare(runs, {}, ComparisonRequest(allow=("driver", "torch"))).cells[0].confounders] == [
        "gpu_driver",
        "torch",
    ]


def test_a_word_that_allows_nothing_is_refused() -> None:
    with pytest.raises(ComparisonError, match=r"allow=widht: .*did you mean width\?"):
        compare(arms(params={"workload.args.width": "64"}), {}, ComparisonRequest(allow=("widht",)))
    with pytest.raises(ComparisonError, match=r"allow=drivr: .*did you mean driver"):
        compare(arms(), {}, ComparisonRequest(allow=("drivr",)))


@pytest.mark.parametrize(
    ("usage", "key"),
    [
        ({"energy_scope": "shared"}, "gpu_shared"),
        ({"throttled_thermal_share": 0.2, "energy_scope": "gpu"}, "thermal_throttling"),
    ],
)
def test_what_was_measured_beside_some_runs_forbids_too(usage: dict[str, Any], key: str) -> None:
    quiet = Usage(energy_scope="gpu", throttled_thermal_share=0.0)
    runs = arm("fp32", VALUES, usage=quiet) + arm("tf32", VALUES, usage=replace(quiet, **usage))

    with pytest.raises(ComparisonError, match=f"{key}: no .*yes .*tf32"):
        compare(runs, {})


def test_not_to_have_measured_is_no_difference() -> None:
    runs = arm("fp32", VALUES, usage=Usage(energy_scope="gpu")) + arm("tf32", VALUES)

    assert compare(runs, {}).cells[0].confounders == ()


def test_a_power_cap_that_was_reached_is_what_the_arm_does() -> None:
    calm, capped = Usage(throttled_power_share=0.0), Usage(throttled_power_share=0.3)
    runs = arm("fp32", VALUES, usage=calm) + arm("tf32", VALUES, usage=capped)

    assert [note.key for note in compare(runs, {}).cells[0].notes] == ["power_throttling"]


def test_the_seed_in_the_words_of_a_users_program_is_no_difference() -> None:
    runs = [replace(r, params={**r.params, "workload.command": f"train.py --epochs 2 --seed {r.seed}"}) for r in arms()]

    assert compare(runs, {}).cells[0].rows[1].n_ok == 3


def test_a_variable_that_has_the_seed_is_no_difference_and_one_that_does_not_always_is() -> None:
    runs = [replace(r, params={**r.params, "workload.env.SEED": str(r.seed), "workload.env.N": "2"}) for r in arms()]

    (cell,) = compare(runs, {}).cells

    assert [row.n_ok for row in cell.rows] == [3, 3]
    odd = [replace(r, params={**r.params, "workload.env.SEED": "9"}) if r.seed == 1 else r for r in runs]
    assert [cell.where["workload.env.SEED"] for cell in compare(odd, {}).cells] == ["0", "2", "9"]


def test_a_variable_called_a_seed_that_is_the_same_in_all_runs_of_an_arm_is_no_runs_own() -> None:
    """PYTHONHASHSEED=0 is the value of seed 0, and yet it is what the other seeds have, too."""
    hashing = [replace(r, params={**r.params, "workload.env.PYTHONHASHSEED": "0"}) for r in arms()]
    others = [replace(r, uid=f"{r.uid}-b", params={**r.params, "workload.env.PYTHONHASHSEED": "5"}) for r in arms()]

    cells = compare([*hashing, *others], {}).cells

    assert [cell.where["workload.env.PYTHONHASHSEED"] for cell in cells] == ["0", "5"]
    assert all(row.n_ok == 3 for cell in cells for row in cell.rows)


def test_the_seed_of_the_runs_is_no_other_question_where_it_is_named() -> None:
    assert compare(arms(), {}, ComparisonRequest(seed="seed")) == compare(arms(), {})


def test_a_variable_that_was_swept_beside_the_seed_is_not_taken_for_it_where_they_are_equal() -> None:
    runs = [
        replace(r, uid=f"{r.uid}{split}", params={**r.params, "workload.env.SPLIT_SEED": str(split)})
        for r in arms()
        for split in range(3)
    ]

    cells = compare(runs, {}).cells

    assert [cell.where["workload.env.SPLIT_SEED"] for cell in cells] == ["0", "1", "2"]
    assert [[row.n_ok for row in cell.rows] for cell in cells] == [[3, 3]] * 3
    assert not any(cell.confounders for cell in cells)


def test_several_settings_may_change_together() -> None:
    few = [run(uid=f"a{s}", seed=s, params={"resources.gpus_per_node": 1}) for s in range(3)]
    many = [run(uid=f"b{s}", seed=s, params={"resources.gpus_per_node": 4, "resources.nodes": 2}) for s in range(3)]

    cell = compare(few + many, {}, ComparisonRequest(by="devices")).cells[0]

    assert [row.level for row in cell.rows] == ["1 x 1", "2 x 4"]
    assert (
        compare(few + many, {}, ComparisonRequest(by="resources.nodes,resources.gpus_per_node")).cells[0].rows
        == cell.rows
    )


def test_the_tag_of_a_container_goes_with_the_software_in_it() -> None:
    here = arm("fp32", VALUES, params={"container.tag": "25.01"}, facts={"image_sha256": "aa", "torch": "2.12"})
    there = [
        replace(
            r, uid=f"{r.uid}-b", params={**r.params, "container.tag": "25.06"}, facts={**FACTS, "image_sha256": "bb"}
        )
        for r in here
    ]

    cell = compare(here + there, {}, ComparisonRequest(by="container.tag")).cells[0]

    assert [row.level for row in cell.rows] == ["25.01", "25.06"]
    assert [note.key for note in cell.notes] == ["torch", "image_sha256"]


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        ("gpu_model", "H100"),
        ("cpu_model", "Xeon"),
        ("torch", "2.12"),
        ("device", "cpu"),
        ("threads", 1),
        ("gpu_driver", "580"),
        ("gpu_power_limit_w", 250),
        ("gpu_max_sm_mhz", 1200),
        ("image_sha256", "feed"),
        ("tensorflow", "2.20"),
    ],
)
def test_other_hardware_or_software_is_refused(fact: str, value: object) -> None:
    with pytest.raises(ComparisonError, match=rf"{fact}: .*{value} \(3 runs: tf32\)"):
        compare(arms(facts={fact: value}), {})


def test_a_fact_that_only_some_runs_recorded_is_a_difference() -> None:
    with pytest.raises(ComparisonError, match=r"torch: .*not recorded \(3 runs: tf32\)"):
        compare(arms(facts={"torch": None}), {})


def test_mixing_can_be_allowed_and_is_listed_as_a_confounder() -> None:
    cell = compare(
        arms(params={"training.batch_size": 128}, facts={"torch": "2.12"}), {}, ComparisonRequest(allow_mixed=True)
    ).cells[0]

    assert [(d.key, d.kind) for d in cell.confounders] == [("training.batch_size", "setting"), ("torch", "fact")]
    assert cell.batch_size is None
    assert cell.rows[1].difference is not None


@pytest.mark.parametrize(
    "params",
    [
        {"seed": 99, "name": "again", "tags": ["a"], "experiment": "other"},
        {"resources.walltime": "2h", "resources.account": "x", "resources.partition": "y", "resources.qos": "z"},
        {"workload.stop_grace": "1m", "cluster.max_parallel": 2},
        {"precision.numerics": "native", "precision.loss_scaling": False},
    ],
)
def test_bookkeeping_and_the_factors_own_settings_may_differ(params: dict[str, Any]) -> None:
    cell = compare(arms(params=params), {}).cells[0]

    assert cell.confounders == cell.notes == ()


def test_where_and_from_which_commit_it_ran_is_only_noted_if_the_code_is_the_same() -> None:
    same = {"code": "9656b3b6"}
    runs = arm("fp32", VALUES, facts=same) + arm(
        "tf32", VALUES, facts={**same, "hostname": "n2", "kernel": "6.1"}, git_commit="fff", git_dirty=True
    )

    cell = compare(runs, {}).cells[0]

    assert [d.key for d in cell.notes] == ["hostname", "git_commit", "git_dirty", "kernel"]
    assert cell.confounders == ()


def test_other_code_between_arms_is_refused_and_named_first_if_allowed() -> None:
    runs = arm("fp32", VALUES, facts={"code": "9656b3b6"}) + arm("amp_bf16", VALUES, facts={"code": "650f005e"})

    with pytest.raises(ComparisonError, match=r"code: .*650f005e \(3 runs: amp_bf16\).*9656b3b6 .*\n.*--allow code"):
        compare(runs, {})

    assert [d.key for d in compare(runs, {}, ComparisonRequest(allow=("code",))).cells[0].confounders] == ["code"]


def test_without_a_copy_of_the_code_its_commit_stands_for_it() -> None:
    with pytest.raises(ComparisonError, match=r"code: commit abc1234 .*; commit fff with uncommitted edits .*tf32"):
        compare(arms(git_commit="fff", git_dirty=True), {})


@pytest.mark.parametrize(("fact", "value"), [("packages", "numpy 2.4"), ("nccl", "2.27.3")])
def test_other_packages_and_another_nccl_are_refused(fact: str, value: str) -> None:
    with pytest.raises(ComparisonError, match=rf"{fact}: .*{value} \(3 runs: tf32\)"):
        compare(arms(facts={fact: value}), {})


def at_step(runs: list[RunRecord], step: int) -> list[RunRecord]:
    return [
        replace(r, metrics={name: replace(of, last_step=step) for name, of in r.metrics.items()}, uid=f"{r.uid}-{step}")
        for r in runs
    ]


def test_values_of_another_last_step_are_refused() -> None:
    with pytest.raises(ComparisonError, match=r"last_step: 100 \(3 runs: fp32\); 39 \(3 runs: tf32\)"):
        compare(arm("fp32", VALUES) + at_step(arm("tf32", VALUES), 39), {})


def ended_at(level: str, *steps: int) -> list[RunRecord]:
    return [run for one, step in zip(arm(level, VALUES), steps, strict=True) for run in at_step([one], step)]


@pytest.mark.parametrize("steps", [(984, 1008, 1020), (1020, 1020, 1010)])
def test_last_steps_that_are_scattered_alike_or_by_little_in_each_arm_are_noted(steps: tuple[int, ...]) -> None:
    cell = compare(ended_at("fp32", 984, 1008, 1020) + ended_at("tf32", *steps), {}).cells[0]

    assert [note.key for note in cell.notes] == ["last_step"]


def test_last_steps_that_are_alike_seed_by_seed_may_be_far_from_each_other() -> None:
    cell = compare(ended_at("fp32", 40, 300, 90) + ended_at("tf32", 40, 300, 90), {}).cells[0]

    assert [note.key for note in cell.notes] == ["last_step"]


@pytest.mark.parametrize("steps", [(100, 100, 39), (98, 98, 98), (300, 90, 40), (96, 97, 98)])
def test_last_steps_that_may_be_those_of_an_arm_are_refused(steps: tuple[int, ...]) -> None:
    with pytest.raises(ComparisonError, match="last_step"):
        compare(ended_at("fp32", 100, 100, 99) + ended_at("tf32", *steps), {})


def test_runs_that_stop_at_a_target_or_were_told_how_long_to_train_may_end_at_other_steps() -> None:
    runs = arm("fp32", VALUES) + at_step(arm("tf32", VALUES), 39)
    longer = arm("fp32", VALUES) + at_step(arm("fp32", VALUES, params={"training.steps": 200}), 200)

    to_target = compare(runs, {}, ComparisonRequest(target=0.9)).cells[0]
    by_length = compare(longer, {}, ComparisonRequest(by="training.steps")).cells[0]

    assert [note.key for note in to_target.notes] == ["last_step"]
    assert [note.key for note in by_length.notes] == ["last_step"]


def test_a_flag_of_the_program_may_be_what_chooses_its_precision_which_then_is_one_within_an_arm() -> None:
    flagged = [
        replace(one, uid=f"{one.uid}-{dtype}")
        for dtype, seen in (("float32", "fp32"), ("bfloat16", "amp_bf16"))
        for one in arm("own", VALUES, precision_effective=seen, params={"workload.args.dtype": dtype})
    ]

    cell = compare(flagged, {}, ComparisonRequest(by="dtype")).cells[0]

    assert [(row.level, row.precision_effective) for row in cell.rows] == [
        ("bfloat16", ("amp_bf16",)),
        ("float32", ("fp32",)),
    ]
    assert cell.confounders == ()
    mixed = [*flagged[:-1], replace(flagged[-1], precision_effective="fp32")]
    with pytest.raises(ComparisonError, match=r"precision_effective: fp32 \(4 runs: bfloat16, float32\); "):
        compare(mixed, {}, ComparisonRequest(by="dtype"))


def test_an_option_that_makes_another_arithmetic_is_in_the_name_of_the_level() -> None:
    unscaled = arm("amp_fp16", VALUES, params={"precision.loss_scaling": False})
    truncated = arm("tf32", VALUES, params={"precision.rounding": "rz"}, numerics="emulated")
    without_effect = arm("fp32", VALUES, params={"precision.loss_scaling": False, "precision.rounding": "rz"})

    cell = compare(without_effect + unscaled + truncated, {}).cells[0]

    assert [row.level for row in cell.rows] == ["fp32", "tf32 rounding=rz", "amp_fp16 loss_scaling=false"]


def test_one_number_written_in_two_ways_is_one_value() -> None:
    assert compare(arms(params={"training.batch_size": 64.0}), {}).cells[0].confounders == ()


def test_a_setting_of_the_factor_must_not_differ_within_a_level() -> None:
    runs = arms()
    runs[-1] = replace(runs[-1], params={**runs[-1].params, "precision.rounding": "rz"})

    with pytest.raises(ComparisonError, match=r"precision.rounding: rna \(5 runs: fp32, tf32\); rz \(1 run: tf32\)"):
        compare(runs, {})


def test_runs_that_do_not_count_do_not_make_a_comparison_unfair() -> None:
    failed = run("tf32", 9, None, state=State.FAILED, params={"training.batch_size": 1})

    cells = compare([*arms(), failed], {}).cells

    assert all(cell.confounders == () for cell in cells)
    assert [cell.where["training.batch_size"] for cell in cells] == ["64", "1"]
    assert cells[1].rows[0].n_failed == 1


def test_comparing_clusters_means_comparing_their_hardware() -> None:
    here = arm("fp32", VALUES)
    there = [
        replace(
            r,
            uid=f"{r.uid}-there",
            params={**r.params, "cluster.name": "lumi", "cluster.scheduler": "slurm", "data.path": "/pfs"},
            facts={**r.facts, "gpu_model": "MI250X", "cpu_model": "Trento"},
        )
        for r in here
    ]

    cell = compare(here + there, {}, ComparisonRequest(by="cluster")).cells[0]

    assert [row.level for row in cell.rows] == ["karolina", "lumi"]
    assert [d.key for d in cell.notes] == ["data.path", "gpu_model", "cpu_model"]
    assert cell.device is None
    assert "cluster" not in cell.where


def test_two_kinds_of_hardware_within_one_level_are_refused_even_then() -> None:
    runs = arm("fp32", VALUES) + arm("fp32", VALUES, params={"cluster.name": "lumi"})
    runs = [replace(r, uid=str(i)) for i, r in enumerate(runs)]
    runs[0] = replace(runs[0], facts={**runs[0].facts, "gpu_model": "V100"})

    with pytest.raises(ComparisonError, match="gpu_model"):
        compare(runs, {}, ComparisonRequest(by="cluster"))


@pytest.mark.parametrize("word", ["width", "args.width", "workload.args.width"])
def test_a_flag_of_the_program_is_allowed_to_differ_by_the_name_that_headings_give_it(word: str) -> None:
    runs = [
        *arm("fp32", [0.9, 0.91, 0.92], params={"workload.args.width": "64"}),
        *arm("tf32", [0.9, 0.91, 0.92], params={"workload.args.width": "128"}),
    ]

    (cell,) = compare(runs, {}, ComparisonRequest(allow=(word,))).cells

    assert [each.key for each in cell.confounders] == ["workload.args.width"]


def test_runs_are_compared_though_each_writes_elsewhere_and_some_have_a_flag_that_others_lack() -> None:
    with_flag = "python t.py '{amp}' --lr '{lr}' --seed '{seed}' '--out-dir={out-dir}'"
    without = "python t.py '--out-dir={out-dir}' --lr '{lr}' --seed '{seed}'"
    runs = [
        replace(each, params={**each.params, "workload.args.out-dir": f"o{at}", "workload.args.lr": "0.1", **more})
        for command, more in ((without, {}), (with_flag, {"workload.args.amp": "--amp"}))
        for at, each in enumerate(arm("own", VALUES, params={"workload.command": command}))
    ]
    runs = [replace(each, uid=f"{each.uid}-{at}") for at, each in enumerate(runs)]

    (cell,) = compare(runs, {}, ComparisonRequest(by="amp")).cells

    assert [(row.level, row.n_units) for row in cell.rows] == [("--amp", 3), ("not set", 3)]
    assert not cell.confounders
    other = replace(runs[0], params={**runs[0].params, "workload.args.output_size": "64"})
    apart = compare([other, *runs[1:]], {}, ComparisonRequest(by="amp"))
    assert [len(each.rows) for each in apart.cells] == [2]
    assert [each.uid for each in apart.excluded] == [other.uid]


def test_what_runs_share_and_that_changed_meanwhile_is_a_flag_of_the_arm() -> None:
    changed = arm("tf32", VALUES, facts={**FACTS, "changed_outside": "mine/data, mine/cache.bin"})

    reference, row = compare(arm("fp32", VALUES) + changed, {}).cells[0].rows

    assert not any("changed while" in flag for flag in texts(reference))
    assert "mine/data, mine/cache.bin changed while 3 of 3 runs went on, which share it" in texts(row)


def swept_as_a_setting(values: list[str], key: str = "workload.args.random_state") -> list[RunRecord]:
    return [
        replace(r, uid=f"{level}-{at}", seed=0, params={**r.params, "seed": 0, key: value})
        for level in ("fp32", "tf32")
        for at, (r, value) in enumerate(zip(arm(level, VALUES), values, strict=True))
    ]


@pytest.mark.parametrize("values", [["0", "1", "2"], ["s10.yaml", "s2.yaml", "s1.yaml"]])
def test_a_setting_may_stand_for_the_seed(values: list[str]) -> None:
    runs = swept_as_a_setting(values)

    (cell,) = compare(runs, {}, ComparisonRequest(seed="random_state")).cells

    assert [row.n_units for row in cell.rows] == [3, 3]
    difference = cell.rows[1].difference
    assert difference is not None
    assert (difference.paired, difference.n_pairs) == (True, 3)


@pytest.mark.parametrize(
    ("seed", "why"),
    [
        ("random_stat", "--seed random_stat is no setting of these runs; did you mean random_state?"),
        ("data", "--seed data: all runs have digits"),
        ("precision.loss_scale", "--seed precision.loss_scale is no setting"),
    ],
)
def test_what_cannot_stand_for_the_seed_is_refused(seed: str, why: str) -> None:
    with pytest.raises(ComparisonError) as caught:
        compare(swept_as_a_setting(["0", "1", "2"]), {}, ComparisonRequest(seed=seed))
    assert str(caught.value).startswith(why)


def test_runs_with_several_seeds_besides_or_without_the_setting_are_refused() -> None:
    runs = swept_as_a_setting(["0", "1", "2"])
    request = ComparisonRequest(seed="random_state")

    with pytest.raises(ComparisonError, match=r"several seeds besides; --where seed=0 takes one"):
        compare([*runs, *(replace(r, uid=f"{r.uid}-b", seed=1) for r in runs)], {}, request)
    with pytest.raises(ComparisonError, match=r"6 of 12 runs have none: leave them out with --where"):
        compare([*runs, *arms()], {}, request)
