from collections.abc import Sequence
from pathlib import Path

import pytest

from hpcml.commands.submit.backends import Machine
from hpcml.commands.submit.check import plan_all
from hpcml.commands.submit.packs import in_turn, packs_of, warnings
from hpcml.commands.submit.plan import Planned
from hpcml.config.compose import compose_from_cli
from hpcml.errors import ConfigError

MACHINE = Machine(cores=2, gpus=[])
ON_A_CLUSTER = ("cluster=karolina", "resources.gpus_per_node=1", "resources.account=DD-1-1")


def planned(folder: Path, *words: str) -> list[Planned]:
    return plan_all(compose_from_cli(["-m", *words], project=folder), MACHINE)


def arms(pack: Sequence[Planned]) -> list[str]:
    return [item.run.precision.name.name for item in pack]


def test_without_packing_each_run_is_alone_in_the_order_of_its_seed(tmp_path: Path) -> None:
    packs = packs_of(planned(tmp_path, "precision=fp32,bf16", "seed=1,0"))

    assert [(len(pack), pack[0].run.seed) for pack in packs] == [(1, 0), (1, 0), (1, 1), (1, 1)]


def test_a_pack_holds_what_differs_in_the_named_factor_alone(tmp_path: Path) -> None:
    packs = packs_of(planned(tmp_path, "precision=fp32,bf16", "seed=0,1", "schedule.pack=precision"))

    assert [{item.run.seed for item in pack} for pack in packs] == [{0}, {1}]
    assert [sorted(arms(pack)) for pack in packs] == [["bf16", "fp32"]] * 2


def test_no_arm_is_always_first(tmp_path: Path) -> None:
    words = ("precision=fp32,tf32,bf16", "schedule.pack=precision", "schedule.repeats=3")

    (pack,) = packs_of(planned(tmp_path, *words))

    assert arms(pack) == [
        *("fp32", "tf32", "bf16"),
        *("tf32", "bf16", "fp32"),
        *("bf16", "fp32", "tf32"),
    ]  # fmt: skip
    assert [item.repeat for item in pack] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_packs_of_single_repeats_do_not_all_begin_with_the_same_arm(tmp_path: Path) -> None:
    packs = packs_of(planned(tmp_path, "precision=fp32,bf16", "seed=0,1", "schedule.pack=precision"))

    assert [arms(pack)[0] for pack in packs] == ["fp32", "bf16"]


def test_seeds_may_be_packed_too_and_take_turns(tmp_path: Path) -> None:
    words = ("precision=fp32,bf16", "seed=0,1", "training.batch_size=32,64", 'schedule.pack="precision,seed"')

    packs = packs_of(planned(tmp_path, *words))

    assert [(pack[0].run.training.batch_size, arms(pack)) for pack in packs] == [
        (32, ["fp32", "bf16", "bf16", "fp32"]),
        (64, ["bf16", "fp32", "fp32", "bf16"]),
    ]


def test_all_means_all_that_ask_for_the_same(tmp_path: Path) -> None:
    words = ("precision=fp32,bf16", "resources.cpus_per_task=1,2", "seed=0,1", "schedule.pack=all")

    packs = packs_of(planned(tmp_path, *words))

    assert [{item.run.resources.cpus_per_task for item in pack} for pack in packs] == [{1}, {2}]
    assert [len(pack) for pack in packs] == [4, 4]


def test_a_pack_of_one_is_a_plain_run(tmp_path: Path) -> None:
    words = (*ON_A_CLUSTER, "precision=fp32", "schedule.pack=precision", "resources.walltime=1h")

    ((item,),) = packs_of(planned(tmp_path, *words))

    assert item.plan.stop_after_s == 3600 - 60  # it has a margin of its own


def test_packed_runs_have_all_of_their_walltime(tmp_path: Path) -> None:
    words = (*ON_A_CLUSTER, "precision=fp32,bf16", "schedule.pack=precision", "resources.walltime=1h")

    (pack,) = packs_of(planned(tmp_path, *words))

    assert [(item.plan.stop_after_s, item.plan.warn_after_s) for item in pack] == [(3600, 3480)] * 2


def test_repeats_without_packs_take_turns(tmp_path: Path) -> None:
    items = planned(tmp_path, "precision=fp32,bf16", "schedule.repeats=2")

    assert arms(items) == ["fp32", "bf16", "fp32", "bf16"]


@pytest.mark.parametrize(
    ("pack", "says"),
    [
        ("presicion", "no setting that tells runs apart is called presicion: did you mean precision"),
        ("training.batchsize", "did you mean training.batch_size"),
        ("schedule.repeats", "no setting that tells runs apart is called schedule.repeats"),
    ],
)
def test_an_unknown_factor_is_refused_with_near_names(tmp_path: Path, pack: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        packs_of(planned(tmp_path, "precision=fp32,bf16", f"schedule.pack={pack}"))


def test_a_sum_of_walltimes_over_the_sites_limit_is_refused(tmp_path: Path) -> None:
    words = (*ON_A_CLUSTER, "precision=fp32,bf16,tf32", "schedule.pack=precision", "cluster.max_walltime=48:00:00")

    with pytest.raises(ConfigError, match=r"3 runs x 20:00:00 and 60 s are .* in one job; cluster=karolina allows 48"):
        packs_of(planned(tmp_path, *words, "resources.walltime=20:00:00"))


def test_a_pack_in_a_queue_needs_a_walltime(tmp_path: Path) -> None:
    words = (*ON_A_CLUSTER, "precision=fp32,bf16", "schedule.pack=precision", "resources.walltime=null")

    with pytest.raises(ConfigError, match=r"set resources\.walltime"):
        packs_of(planned(tmp_path, *words))


def test_a_factor_that_changes_what_is_asked_for_is_warned_about(tmp_path: Path) -> None:
    words = ("schedule.pack=training.batch_size", "training.batch_size=32,64")
    apart = planned(tmp_path, *words, "resources.cpus_per_task=1,2")
    never = [item for item in apart if item.run.training.batch_size == 16 * 2 * item.plan.cpus_per_task]  # type: ignore[operator]

    assert list(warnings(apart)) == []
    (line,) = warnings(never)
    assert "schedule.pack names training.batch_size, and no two runs" in line


def test_arms_that_would_have_a_node_each_are_warned_about(tmp_path: Path) -> None:
    words = ("precision=fp32,bf16", "seed=0,1,2")

    (line,) = warnings(planned(tmp_path, *words, "schedule.pack=seed"))

    assert line.startswith("schedule.pack=seed puts the seeds of each arm into jobs of their own: arm and node")
    assert list(warnings(planned(tmp_path, *words, "schedule.pack=precision"))) == []
    assert list(warnings(planned(tmp_path, *words, 'schedule.pack="precision,seed"'))) == []
    assert list(warnings(planned(tmp_path, *words))) == []
    assert list(warnings(planned(tmp_path, "seed=0,1,2", "schedule.pack=seed"))) == []


def test_turns_go_round_whatever_the_number_of_blocks(tmp_path: Path) -> None:
    items = planned(tmp_path, "precision=fp32,bf16", "schedule.repeats=4")

    firsts = [arms(in_turn(items, offset=offset))[::2] for offset in (0, 1)]

    assert firsts == [["fp32", "bf16", "fp32", "bf16"], ["bf16", "fp32", "bf16", "fp32"]]


def test_a_mistake_is_found_when_planning(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="presicion"):
        planned(tmp_path, "schedule.pack=presicion")
