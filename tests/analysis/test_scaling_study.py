from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from scaling_runs import Sweep, amdahl, constant, gustafson

from hpcml.analysis.scaling.cells import Over
from hpcml.analysis.scaling.result import Scaling, ScalingCell, ScalingPoint
from hpcml.analysis.scaling.study import ScalingRequest, study_scaling
from hpcml.errors import ComparisonError
from hpcml.model.records import Point, Usage, Work
from hpcml.model.state import State
from hpcml.units import one_or_many


def study(sweep: Sweep, question: ScalingRequest | None = None) -> Scaling:
    return study_scaling(sweep.runs, sweep.curves, question or ScalingRequest())


def only(scaling: Scaling) -> ScalingCell:
    [cell] = scaling.cells
    return cell


def points(cell: ScalingCell) -> dict[int, ScalingPoint]:
    return {point.devices: point for point in cell.points}


def test_strong_scaling_gives_back_the_speed_ups_and_the_share_that_it_was_made_with() -> None:
    cell = only(study(Sweep().law(amdahl(0.1))))

    found = points(cell)
    assert cell.kind == "strong"
    assert list(found) == [1, 2, 4, 8]
    assert found[1].speedup is None
    speedup, before = found[8].speedup, found[4].speedup
    assert speedup is not None
    assert before is not None
    assert speedup == pytest.approx(1 / (0.1 + 0.9 / 8), rel=0.02)
    assert found[8].efficiency == pytest.approx(speedup / 8)
    assert found[8].cost == pytest.approx(8 / speedup)
    assert found[8].samples_per_s == pytest.approx(64 / amdahl(0.1)(8), rel=0.02)
    assert found[8].gain == pytest.approx(speedup / before)
    assert found[8].paired is True
    assert cell.fit is not None
    assert cell.fit.ci95 is not None
    assert cell.fit.ci95.low < 0.1 < cell.fit.ci95.high
    assert cell.no_help_beyond is None
    assert any(s.startswith("more GPUs help up to 8, the most that was tried") for s in cell.sentences)
    assert any(s.startswith("2, 4, 8 GPUs pay") for s in cell.sentences)


def test_steps_that_recur_slowly_on_more_devices_count_in_the_speed_up() -> None:
    sweep = Sweep()
    sweep.law(amdahl(0.0), gpus=(1, 2))
    for uid in [run.uid for run in sweep.runs if run.params["resources.gpus_per_node"] == 2]:
        slow = [Point(p.step, p.t_s, p.value * (3.5 if p.step % 10 < 4 else 1)) for p in sweep.step_s[uid]]
        sweep.step_s[uid] = slow  # on average the two are as fast as one

    cell = only(study(sweep))

    two = points(cell)[2]
    assert two.speedup == pytest.approx(1.0, rel=0.03)
    assert two.samples_per_s == pytest.approx(640, rel=0.03)
    assert any("speeds are of mean step times" in flag.text for flag in cell.flags)
    assert not any("2 GPUs pay" in sentence for sentence in cell.sentences)


def test_weak_scaling_is_found_where_the_batch_grows_and_counts_samples() -> None:
    cell = only(study(Sweep().law(gustafson(0.2), batch=lambda gpus: 64 * gpus)))

    found = points(cell)
    assert cell.kind == "weak"
    assert cell.where["batch size a device"] == "64"
    assert found[8].batch_size == 512
    assert found[8].speedup == pytest.approx(8 * (1 - 0.2 * 7 / 8), rel=0.02)
    assert found[8].efficiency == pytest.approx(1 - 0.2 * 7 / 8, rel=0.02)
    assert cell.fit is not None
    assert cell.fit.law == "Gustafson"
    assert cell.fit.share == pytest.approx(0.2, abs=0.02)
    assert not any("batch_size" in str(note) for note in cell.notes)


def test_a_learning_rate_that_grows_with_the_batch_makes_no_cells_but_is_noted() -> None:
    sweep = Sweep()
    for gpus in (1, 2):
        for seed in range(3):
            grown = {"training.batch_size": 64 * gpus, "training.learning_rate": 0.001 * gpus}
            sweep.add(gpus, 0.1, seed=seed, params=grown)

    cell = only(study(sweep))

    assert cell.kind == "weak"
    assert any(note.key == "training.learning_rate" for note in cell.notes)


def test_no_help_is_said_only_where_the_upper_end_of_every_gain_is_small() -> None:
    flat = only(study(Sweep(noise=0.003).law(lambda gpus: {1: 0.1, 2: 0.06, 4: 0.0595, 8: 0.0597}[gpus])))
    noisy = only(study(Sweep(noise=0.15).law(lambda _: 0.06, gpus=(1, 2), seeds=3)))
    late = only(study(Sweep(noise=0.003).law(lambda gpus: {1: 0.1, 2: 0.06, 4: 0.0595, 8: 0.03}[gpus])))

    assert flat.no_help_beyond == 2
    assert any(s.startswith("more GPUs do not help beyond 2 GPUs: gains shown to be below 5 %") for s in flat.sentences)
    assert noisy.no_help_beyond is None
    assert any(s.startswith("that more GPUs do not help is not shown") for s in noisy.sentences)
    assert late.no_help_beyond is None


def test_no_help_is_seldom_said_where_more_devices_do_gain_what_counts_as_help() -> None:
    wrong = 0
    for replication in range(400):
        sweep = Sweep(noise=0.02)
        sweep._random = random.Random(replication)  # noqa: S311
        wrong += (
            only(study(sweep.law(lambda gpus: 0.1 / (1.05 if gpus == 2 else 1), gpus=(1, 2), seeds=3))).no_help_beyond
            == 1
        )

    assert wrong / 400 <= 0.025 + 3 * (0.025 * 0.975 / 400) ** 0.5  # one end of a 95 % interval


def test_a_law_is_not_told_where_it_does_not_describe_the_times() -> None:
    cell = only(study(Sweep(noise=0.001).law(lambda gpus: {1: 0.1, 2: 0.06, 4: 0.08, 8: 0.2}[gpus])))

    assert any("law does not describe these times" in sentence for sentence in cell.sentences)
    assert not any("however many" in sentence for sentence in cell.sentences)


def test_runs_that_failed_are_in_the_table_with_their_cause() -> None:
    sweep = Sweep().law(amdahl(0.1), gpus=(1, 2, 4))
    for seed in range(2):
        sweep.add(8, None, seed=seed, state=State.FAILED, cause="OUT_OF_MEMORY", params={"training.batch_size": 64})
    sweep.add(4, None, seed=9, state=State.FAILED, cause="NODE_FAIL", params={"training.batch_size": 64})

    cell = only(study(sweep))

    found = points(cell)
    assert (found[8].n, found[8].n_failed) == (0, 2)
    assert found[8].speedup is None
    assert (found[4].n, found[4].n_failed) == (5, 1)
    assert "1 of 6 ended runs failed: NODE_FAIL" in {flag.text for flag in found[4].flags}
    assert cell.sentences[0] == "no run on 8 GPUs came through: 2 of 2 ended runs failed: OUT_OF_MEMORY (2)"
    assert len(cell.excluded) == 3


@pytest.mark.parametrize("numerics", ["emulated", "unproven"])
def test_runs_that_were_not_native_have_no_speed(numerics: str) -> None:
    sweep = Sweep()
    for gpus in (1, 2):
        for seed in range(3):
            sweep.add(gpus, 0.1, seed=seed, numerics=numerics)

    with pytest.raises(ComparisonError, match=f"no run has a speed: numerics {numerics} of all 6 completed runs"):
        study(sweep)


def test_one_emulated_run_among_native_ones_is_left_out_with_its_reason() -> None:
    sweep = Sweep().law(amdahl(0.1), gpus=(1, 2))
    emulated = sweep.add(2, 9.0, seed=0, numerics="emulated")

    cell = only(study(sweep))

    assert points(cell)[2].step_ms == pytest.approx(55, rel=0.05)
    assert [(run.uid, run.level) for run in cell.excluded] == [(emulated.uid, "2")]
    assert cell.excluded[0].reason.startswith("numerics emulated")


def test_other_hardware_is_a_confounder_that_can_be_allowed_by_name() -> None:
    sweep = Sweep().law(amdahl(0.1), gpus=(1, 2))
    sweep.runs = [
        replace(r, facts={**r.facts, "gpu_model": "V100"}) if at % 2 else r for at, r in enumerate(sweep.runs)
    ]

    with pytest.raises(ComparisonError, match=r"differ in more than the number of GPUs:(?s:.*)gpu_model: A100"):
        study(sweep)
    allowed = only(study(sweep, ScalingRequest(allow=["gpu_model"])))
    assert [confounder.key for confounder in allowed.confounders] == ["gpu_model"]
    with pytest.raises(ComparisonError, match="gpu_model"):
        study(sweep, ScalingRequest(allow=["threads"]))
    assert only(study(sweep, ScalingRequest(allow_mixed=True))).confounders


def test_settings_make_cells_and_the_answer_over_them_says_from_where_on_devices_pay() -> None:
    sweep = Sweep()
    for batch, share in ((64, 0.9), (256, 0.6), (1024, 0.05)):
        sweep.law(amdahl(share, one_s=batch / 1000), gpus=(1, 2, 4), batch=lambda _, size=batch: size)  # type: ignore[misc]

    scaling = study(sweep, ScalingRequest(kind="strong"))

    assert [cell.where["batch size"] for cell in scaling.cells] == ["64", "256", "1024"]
    two, four = scaling.pays_from
    assert two.startswith("2 GPUs pay from batch size 64 on")
    assert four.startswith("4 GPUs pay from batch size 1024 on (efficiency ")
    assert four.endswith("; not shown at 64, 256")


def test_models_are_ordered_by_their_operations() -> None:
    sweep = Sweep()
    for model, share, flops in (("large", 0.01, 5e9), ("small", 0.95, 2e6)):
        work = Work(model_flops=64 * flops, samples=64, devices=None)
        for gpus in (1, 4):
            for seed in range(3):
                step_s = amdahl(share)(gpus)
                sweep.add(gpus, step_s, seed=seed, work=work, params={"model.name": model, "model.recipe": model})

    [sentence] = study(sweep).pays_from

    assert sentence.startswith("4 GPUs pay from model large (5e+03 MFLOP a sample) on (efficiency ")
    assert sentence.endswith("n=3: indicative only); not shown at small (2 MFLOP a sample)")


def test_widths_of_one_model_are_sizes_of_it_and_their_order_is_that_of_their_operations() -> None:
    sweep = Sweep()
    for width, share in ((1024, 0.01), (128, 0.95), (512, 0.3)):
        work = Work(model_flops=64e3 * width**2, samples=64, devices=None)
        for gpus in (1, 2, 4):
            for seed in range(5):
                settings = {"model.name": "decoder", "model.options.width": width}
                sweep.add(gpus, amdahl(share)(gpus), seed=seed, work=work, params=settings)

    scaling = study(sweep)

    [row] = scaling.sizes
    assert (row.kind, row.size, row.apart) == ("strong", "model", "")
    assert [name.partition(" (")[0] for name in row.names] == ["width 128", "width 512", "width 1024"]
    assert [scaling.cells[place].where["model.options.width"] for place in row.cells] == ["128", "512", "1024"]
    two, four = scaling.pays_from
    assert two.startswith("2 GPUs pay from model width 128 (16.4 MFLOP a sample) on (efficiency")
    assert four.startswith("4 GPUs pay from model width 512 (262 MFLOP a sample) on (efficiency")
    assert four.endswith("; not shown at width 128 (16.4 MFLOP a sample)")


def test_an_option_that_leaves_the_operations_as_they_are_is_no_size() -> None:
    sweep = Sweep()
    for dropout, share in ((0.0, 0.1), (0.5, 0.9)):
        for gpus in (1, 4):
            for seed in range(5):
                settings = {"model.name": "decoder", "model.options.dropout": dropout}
                work = Work(model_flops=64e6, samples=64, devices=None)
                sweep.add(gpus, amdahl(share)(gpus), seed=seed, work=work, params=settings)

    scaling = study(sweep)

    assert len(scaling.cells) == 2
    assert (scaling.sizes, scaling.pays_from) == ((), ())


def test_one_seed_shows_nothing_and_three_are_indicative() -> None:
    one = only(study(Sweep().law(amdahl(0.1), seeds=1)))
    three = only(study(Sweep().law(amdahl(0.1), seeds=3)))

    assert points(one)[8].speedup_ci95 is None
    assert "one seed somewhere: nothing is shown" in one.sentences
    assert not any(" help up to " in sentence or " GPUs pay (" in sentence for sentence in one.sentences)
    assert "3 seeds: all of this is indicative only" in three.sentences


def test_the_reference_can_be_chosen_and_one_that_is_not_there_is_refused() -> None:
    sweep = Sweep().law(amdahl(0.1))

    cell = only(study(sweep, ScalingRequest(reference=2)))

    assert cell.reference == 2
    assert (points(cell)[1].efficiency or 0) > 1
    with pytest.raises(ComparisonError, match="reference 16: no cell has a speed on it; choose 1, 2, 4, 8"):
        study(sweep, ScalingRequest(reference=16))


def test_a_reference_where_no_run_has_a_speed_offers_no_empty_choice() -> None:
    sweep = Sweep()
    for gpus in (1, 2):
        sweep.add(gpus, None)

    with pytest.raises(ComparisonError, match="reference 2: no run has a speed; without a reference the reasons are"):
        study(sweep, ScalingRequest(reference=2))


def test_the_order_of_the_runs_does_not_matter() -> None:
    sweep = Sweep().law(amdahl(0.1)).law(amdahl(0.5), batch=lambda _: 256)
    first = study(sweep)
    random.Random(3).shuffle(sweep.runs)  # noqa: S311

    assert study(sweep) == first


def test_nodes_threads_and_processes_are_counted_too() -> None:
    nodes, threads, processes = Sweep(), Sweep(), Sweep()
    for number in (1, 2):
        for seed in range(3):
            nodes.add(
                2 * number,
                0.1 / number,
                seed=seed,
                params={"resources.nodes": number, "resources.gpus_per_node": 4, "strategy.name": "ddp"},
            )
            cpu = {"resources.gpus_per_node": None, "strategy.name": "single"}
            one = {**cpu, "resources.cpus_per_task": number}
            threads.add(1, 0.1 / number, seed=seed, params=one, facts={"device": "cpu", "threads": number})
            several = {**cpu, "strategy.name": "ddp" if number > 1 else "single", "strategy.processes_per_node": number}
            processes.add(1, 0.1 / number, seed=seed, params=several, facts={"device": "cpu", "threads": 1})

    assert only(study(nodes, ScalingRequest(over=Over.nodes))).over == "nodes"
    assert study(nodes).over == "GPUs"  # of 4 and 8
    assert study(threads).over == "CPU threads"
    assert study(processes).over == "processes"
    with pytest.raises(ComparisonError, match="no run of 6 says on how many GPUs it ran; --over threads"):
        study(threads, ScalingRequest(over=Over.gpus))


def test_where_nothing_scales_the_line_says_what_to_launch() -> None:
    sweep = Sweep().law(amdahl(0.1), gpus=(1,))
    with pytest.raises(
        ComparisonError, match=r"nothing to compare: all 5 runs have 1 GPU; hpcml run -m strategy=ddp .* launches some"
    ):
        study(sweep)
    with pytest.raises(ComparisonError, match="nothing to compare: the only run has 1 GPU; hpcml run"):
        study_scaling(sweep.runs[:1], sweep.curves, ScalingRequest())
    with pytest.raises(ComparisonError, match="none matches the selection"):
        study(Sweep())
    program = [replace(sweep.runs[0], params={}, facts={"device": "cpu"})]
    with pytest.raises(ComparisonError, match="no run of 1 says on how many GPUs or CPU threads it ran; hpcml run"):
        study_scaling(program, {}, ScalingRequest())
    odd = Sweep()
    odd.add(1, 0.1)
    odd.add(2, 0.1, params={"model.name": "another"})
    with pytest.raises(ComparisonError, match="the number of GPUs is 1, 2, but no two runs differ in it alone"):
        study(odd)
    waiting = Sweep()
    for gpus in (1, 2):
        waiting.add(gpus, None, state=State.PENDING)
    with pytest.raises(ComparisonError, match="no run of 2 is COMPLETED"):
        study(waiting)


def test_what_a_program_says_of_itself_is_held_against_what_was_configured() -> None:
    sweep = Sweep()
    for gpus in (1, 2):
        for seed in range(2):
            sweep.add(gpus, 0.1, seed=seed, work=Work(devices=1, samples=64 if gpus == 1 else 128))

    found = points(only(study(sweep, ScalingRequest(kind="strong"))))

    assert "the program says that it used 1, not 2" in {flag.text for flag in found[2].flags}
    assert any("the 64 that were configured: the program's number counts" in flag.text for flag in found[2].flags)
    assert found[2].speedup == pytest.approx(2, rel=0.05)  # by samples, of which a step took twice as many
    assert not any("says that it used" in flag.text for flag in found[1].flags)


def test_energy_gpu_hours_communication_and_waiting_are_told_where_they_were_measured() -> None:
    sweep = Sweep(noise=0)
    for gpus in (1, 2):
        for seed in range(3):
            record = sweep.add(
                gpus, 0.1, seed=seed, usage=Usage(gpus=gpus, gpu_s=3600.0 * gpus, energy_j=6400.0 * gpus)
            )
            sweep.communication_s[record.uid] = constant(0.02 * (gpus - 1))
            sweep.waiting_s[record.uid] = constant(0.05 * gpus)

    found = points(only(study(sweep)))

    assert (found[1].gpu_hours, found[2].gpu_hours) == (1, 2)
    assert found[2].energy_kj == pytest.approx(12.8)
    assert found[1].communication_share == pytest.approx(0)
    assert found[2].communication_share == pytest.approx(0.2)
    assert any("waits for input 33 % of the time" in flag.text for flag in found[1].flags)
    assert any("waits for input 50 % of the time" in flag.text for flag in found[2].flags)


def test_a_user_s_own_program_has_no_weak_scaling_unless_it_counts_its_samples() -> None:
    def sweep(work: Callable[[int], Work | None]) -> Sweep:
        made = Sweep()
        for gpus in (1, 2):
            for seed in range(3):
                params = {"model.recipe": None, "training.batch_size": 64 * gpus}
                made.add(gpus, 0.1, seed=seed, params=params, work=work(gpus))
        return made

    silent, counting = only(study(sweep(lambda _: None))), only(study(sweep(lambda gpus: Work(samples=64.0 * gpus))))

    assert points(silent)[2].speedup is None
    assert any("how many samples a step takes is not known" in flag.text for flag in silent.flags)
    assert points(counting)[2].speedup == pytest.approx(2, rel=0.05)


def test_runs_without_a_gpu_have_no_gpu_hours() -> None:
    sweep = Sweep(noise=0)
    for number in (1, 2):
        for seed in range(3):
            sweep.add(number, 0.1, seed=seed, usage=Usage(gpus=0, gpu_s=0.0, cpu_s=10.0))

    assert [point.gpu_hours for point in only(study(sweep)).points] == [None, None]


@pytest.mark.parametrize(
    ("gpus", "grows", "said"),
    [
        ((1, 2), 2.0, "more GPUs take longer than fewer (a share of "),
        ((1, 2), 0.4, "they gain more than GPUs were added (a share of "),
        ((1, 2, 4), 2.0, "it is off by up to "),
        ((1, 2, 4), 0.4, "it is off by up to "),
    ],
)
def test_no_more_than_all_of_the_work_is_said_not_to_divide(gpus: Sequence[int], grows: float, said: str) -> None:
    law = Sweep().law(lambda number: 0.1 * grows ** (number.bit_length() - 1), gpus=gpus)

    told = " ".join(only(study(law)).sentences)

    assert "of the work does not divide" not in told
    assert f"Amdahl's law does not describe these times: {said}" in told


def test_without_a_speed_the_metric_that_would_give_one_is_named() -> None:
    silent = Sweep()
    for gpus in (1, 2):
        silent.add(gpus, None)

    (told,) = only(study(silent)).sentences

    assert "have a speed, which the metric step_time_s gives, the seconds of each step: nothing is shown" in told


def test_of_a_user_s_own_program_no_batch_and_no_layout_is_told_that_it_need_not_know() -> None:
    own = {"workload.command": "./train", "model.recipe": None, "model.name": "custom", "data.name": "digits"}
    steps = study(Sweep().law(amdahl(0.1), gpus=(1, 2), batch=lambda _: 64, **own))
    asked = study(Sweep().law(amdahl(0.1), gpus=(1, 2), batch=lambda _: 32, **own))

    assert (only(steps).where["model"], only(steps).where["layout"]) == ("not set", "not set")
    assert "batch size" not in only(steps).where
    assert [point.batch_size for point in only(steps).points] == [None, None]
    assert only(asked).where["batch size"] == "32"  # somebody chose it


def test_one_gpu_and_many_processes_are_said_in_words_that_fit() -> None:
    assert one_or_many(1, "GPUs") == "GPU"
    assert one_or_many(1, "processes") == "process"
    assert one_or_many(1, "nodes") == "node"
    assert one_or_many(2, "CPU threads") == "CPU threads"


def test_two_batches_that_happen_to_fit_are_no_weak_scaling_and_three_numbers_are() -> None:
    pair = Sweep().law(amdahl(0.1), gpus=(1, 2), batch=lambda _: 64).law(amdahl(0.1), gpus=(1, 2), batch=lambda _: 128)
    grid = Sweep()
    for batch in (64, 128, 256):
        grid.law(amdahl(0.1), gpus=(1, 2, 4), batch=lambda _, size=batch: size)  # type: ignore[misc]

    assert {cell.kind for cell in study(pair).cells} == {"strong"}
    assert {cell.kind for cell in study(pair, ScalingRequest(kind="weak")).cells} == {"weak"}
    assert [len(cell.points) for cell in study(grid).cells if cell.kind == "weak"] == [3]


def test_a_single_process_joins_every_strategy_that_shares_the_work() -> None:
    sweep = Sweep()
    for seed in range(3):
        sweep.add(1, 0.1, seed=seed)
        sweep.add(2, 0.06, seed=seed)
        sweep.add(2, 0.08, seed=seed, params={"strategy.name": "fsdp"})

    cells = study(sweep).cells

    speedups = {cell.where["strategy"]: points(cell)[2].speedup for cell in cells}
    assert speedups == pytest.approx({"ddp": 0.1 / 0.06, "fsdp": 0.1 / 0.08}, rel=0.05)
