"""Every strategy says how many devices it needs, and refuses others in one line."""

from __future__ import annotations

import pytest

from hpcml.errors import ConfigError
from hpcml.model.strategy import KINDS, Processes, Strategy, StrategyName


def test_every_strategy_is_described() -> None:
    assert set(KINDS) == set(StrategyName)


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.fewest_devices > 1])
def test_a_parallel_strategy_is_refused_on_one_device(name: StrategyName) -> None:
    with pytest.raises(ConfigError, match=rf"strategy={name.name} needs"):
        Strategy(name=name).check(nodes=1, gpus_per_node=1)


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.on_gpus and kind.fewest_devices > 1])
def test_it_takes_the_gpus_of_a_node(name: StrategyName) -> None:
    Strategy(name=name).check(nodes=1, gpus_per_node=4)


def test_without_a_gpu_processes_or_logical_devices_stand_in() -> None:
    Strategy(name=StrategyName.fsdp, processes_per_node=2).check(nodes=1, gpus_per_node=0)
    Strategy(name=StrategyName.mirrored, devices=2).check(nodes=1, gpus_per_node=0)
    Strategy(name=StrategyName.multi_worker_mirrored).check(nodes=2, gpus_per_node=0)


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.processes is Processes.one])
def test_one_process_stays_on_one_node(name: StrategyName) -> None:
    with pytest.raises(ConfigError, match="nodes=2"):
        Strategy(name=name, devices=2 if KINDS[name].fewest_devices > 1 else None).check(nodes=2, gpus_per_node=0)


def test_threads_of_the_cpu_take_no_gpu() -> None:
    with pytest.raises(ConfigError, match=r"without a GPU: set resources.gpus_per_node=0"):
        Strategy(name=StrategyName.cpu_threads).check(nodes=1, gpus_per_node=1)


def test_devices_that_are_not_the_gpus_are_refused() -> None:
    with pytest.raises(ConfigError, match="does not match"):
        Strategy(name=StrategyName.mirrored, devices=2).check(nodes=1, gpus_per_node=4)


def test_without_a_gpu_a_node_may_have_several_workers_of_one_replica_each() -> None:
    Strategy(name=StrategyName.multi_worker_mirrored, processes_per_node=2).check(nodes=1, gpus_per_node=0)

    with pytest.raises(ConfigError, match=r"uses one each where there is no GPU \(set strategy.processes_per_node\)"):
        Strategy(name=StrategyName.multi_worker_mirrored, devices=2).check(nodes=1, gpus_per_node=0)
    with pytest.raises(ConfigError, match="is one process on each node: processes_per_node=2"):
        Strategy(name=StrategyName.multi_worker_mirrored, processes_per_node=2).check(nodes=1, gpus_per_node=4)


def test_horovod_has_a_process_for_each_gpu_as_ddp() -> None:
    assert KINDS[StrategyName.horovod].processes is KINDS[StrategyName.ddp].processes is Processes.per_device
