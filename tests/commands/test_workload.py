from pathlib import Path

import pytest

from hpcml.commands.submit.backends import look_around
from hpcml.commands.submit.check import plan_all
from hpcml.commands.submit.plan import Software, build_plan, with_times
from hpcml.config.compose import compose_from_cli
from hpcml.errors import ConfigError
from hpcml.model.choices import Numerics
from hpcml.model.precision import CPU, Device
from hpcml.model.run import Run, Workload
from hpcml.paths import resource_dir
from hpcml.runs.plan import Plan
from tests.commands.planning import planned_for
from tests.conftest import ComposeOne

A100 = Device(kind="cuda", name="A100", compute_capability=(8, 0))
SOFTWARE = Software(python="/opt/py/bin/python", recipes=resource_dir("recipes"), cwd=Path("/home/me"))


def plan(run: Run, device: Device = CPU, cpus_per_task: int | None = 4) -> Plan:
    return build_plan(run, device, SOFTWARE, cpus_per_task=cpus_per_task)


def test_a_recipe_is_started_by_the_python_that_was_chosen(compose_one: ComposeOne) -> None:
    argv = plan(compose_one()).argv

    assert argv == ["/opt/py/bin/python", str(resource_dir("recipes") / "image_classification" / "train.py")]


def test_a_command_is_split_as_a_shell_would_and_never_given_to_one(compose_one: ComposeOne) -> None:
    run = compose_one("workload.command=train 'a b' $(reboot) ; rm -rf '*'")

    assert plan(run).argv == ["train", "a b", "$(reboot)", ";", "rm", "-rf", "*"]


def test_a_word_or_variable_that_linux_starts_no_program_with_is_refused(compose_one: ComposeOne) -> None:
    fits, long = "x" * 131_071, "x" * 131_072

    assert plan(compose_one(f"workload.command=true {fits}")).argv == ["true", fits]
    for asked in ([f"workload.command=true {long}"], ["workload.command=true", f"workload.env.NAME={long[5:]}xx"]):
        with pytest.raises(ConfigError, match=r"x\.\.\. has 131,07\d bytes, .* than 131,071: write it to a file"):
            plan(compose_one(*asked))


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (["workload.command=x", "strategy=ddp", "strategy.processes_per_node=2"], "RANK"),
        (["workload.command=x", "strategy=ddp", "strategy.processes_per_node=2"], "SLURM_PROCID"),
        (["workload.command=x"], "HPCML_RUN_ID"),
        (["workload.command=x"], "HPCML_PRECISION"),
        ([], "MASTER_PORT"),
    ],
)
def test_a_variable_that_would_have_no_effect_is_refused(
    compose_one: ComposeOne, overrides: list[str], name: str
) -> None:
    with pytest.raises(ConfigError, match=rf"workload.env.{name} would have no effect: .* its own {name}: leave it"):
        plan(compose_one(*overrides, f"workload.env.{name}='7'"))


def test_what_hpcml_leaves_alone_may_be_set(compose_one: ComposeOne) -> None:
    run = compose_one("workload.command=x", "workload.env.RANK='-1'", "workload.env.HPCML_HOME=/mine")

    assert {"RANK": "-1", "HPCML_HOME": "/mine"}.items() <= plan(run).environment.items()


def test_a_launcher_is_started_once(compose_one: ComposeOne) -> None:
    once = compose_one("workload.command=torchrun x.py", "strategy=ddp", "strategy.processes_per_node=2")

    with pytest.raises(ConfigError, match="torchrun starts the processes itself, and strategy=ddp would start it 2"):
        plan(once)


@pytest.mark.parametrize(
    ("command", "launcher"),
    [
        ("torchrun x.py", "torchrun"),
        ("/opt/env/bin/accelerate launch x.py", "accelerate"),
        ("python -m torch.distributed.run --nproc-per-node 2 x.py", "torchrun"),
        ("python3.11 -u -m accelerate.commands.launch x.py", "accelerate"),
        ("python x.py -m torch.distributed.run", None),
        ("python -m", None),
        ("python -m mine", None),
        ("python", None),
        ("./train", None),
        ("'", None),
    ],
)
def test_what_starts_processes_itself_is_known_by_its_name_or_its_module(command: str, launcher: str | None) -> None:
    assert Workload(command=command).own_launcher == launcher


@pytest.mark.parametrize("word", ["cluster.modules=[cuda]", "cluster.prelude=['ulimit -n 4096']"])
def test_what_only_a_job_script_does_is_refused_on_this_machine(tmp_path: Path, word: str) -> None:
    points = compose_from_cli(["cluster=local", word, "workload.command=true"], project=tmp_path)

    with pytest.raises(ConfigError, match=f"{word.partition('=')[0]}=.*: prepare that before hpcml run"):
        plan_all(points, look_around({}))


def test_a_cpu_run_cannot_wander_onto_a_gpu(compose_one: ComposeOne) -> None:
    environment = plan(compose_one()).environment

    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert environment["OMP_NUM_THREADS"] == "4"


def test_a_gpu_run_leaves_the_choice_of_gpu_to_the_queue(compose_one: ComposeOne) -> None:
    decided = plan(compose_one("precision=tf32"), A100)

    assert "CUDA_VISIBLE_DEVICES" not in decided.environment
    assert (decided.numerics, decided.device, decided.gpus_per_node) == (Numerics.native, "cuda", 1)
    assert decided.environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_ddp_starts_a_process_for_each_gpu(compose_one: ComposeOne) -> None:
    decided = plan(compose_one("strategy=ddp", "resources.gpus_per_node=4", "+cluster=karolina"), A100)

    assert (decided.processes_per_node, decided.gpus_per_node) == (4, 4)


def test_ddp_without_gpus_starts_what_was_asked_for(compose_one: ComposeOne) -> None:
    decided = plan(compose_one("strategy=ddp", "strategy.processes_per_node=2"))

    assert (decided.processes_per_node, decided.gpus_per_node) == (2, 0)


def test_code_that_is_compiled_cannot_be_emulated(compose_one: ComposeOne) -> None:
    assert plan(compose_one("training.compile=true")).numerics is Numerics.native
    assert plan(compose_one("training.compile=true", "precision=tf32"), A100).numerics is Numerics.native
    with pytest.raises(ConfigError, match=r"^training\.compile=true: .* emulation of tf32: set it to false$"):
        plan(compose_one("training.compile=true", "precision=tf32"))


@pytest.mark.parametrize("name", ["NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"])
def test_the_precision_switches_cannot_be_overruled_by_the_users_environment(
    compose_one: ComposeOne, name: str
) -> None:
    with pytest.raises(ConfigError, match="would undo precision=fp32"):
        plan(compose_one(f"+workload.env.{name}=1"))


def test_the_users_variables_reach_the_program(compose_one: ComposeOne) -> None:
    assert plan(compose_one("workload.env.NCCL_ALGO=Tree")).environment["NCCL_ALGO"] == "Tree"


@pytest.mark.parametrize("command", ["'unclosed", ""])
def test_a_command_that_is_none_is_refused(compose_one: ComposeOne, command: str) -> None:
    with pytest.raises(ConfigError, match=r"workload\.command"):
        plan(compose_one(f"workload.command={command}"))


@pytest.mark.parametrize(
    ("walltime", "grace", "stop_after_s"),
    [("24:00:00", "30s", 86_340), ("1h", "10m", 3600 - 630), ("60s", "30s", 30), ("2s", "30s", 1)],
)
def test_a_workload_is_stopped_before_its_scheduler_kills_everything(
    compose_one: ComposeOne, walltime: str, grace: str, stop_after_s: int
) -> None:
    run = compose_one("+cluster=karolina", f"resources.walltime={walltime}", f"workload.stop_grace={grace}")

    assert plan(run, A100).stop_after_s == stop_after_s


def test_on_this_machine_the_walltime_is_all_the_workloads(compose_one: ComposeOne) -> None:
    assert plan(compose_one("resources.walltime=60s")).stop_after_s == 60


def test_a_packed_run_leaves_the_margin_to_its_job(compose_one: ComposeOne) -> None:
    run = compose_one("+cluster=karolina", "resources.walltime=1h", "schedule.notice=5m")
    alone = plan(run, A100)

    packed = with_times(alone, run, is_packed=True)

    assert (alone.stop_after_s, alone.warn_after_s) == (3540, 3240)
    assert (packed.walltime_s, packed.stop_after_s, packed.warn_after_s) == (3600, 3600, 3300)
    assert with_times(packed, run) == alone


def test_a_run_without_a_walltime_has_no_times(compose_one: ComposeOne) -> None:
    decided = plan(compose_one())

    assert (decided.walltime_s, decided.stop_after_s, decided.warn_after_s) == (None, None, None)


def test_a_precision_that_the_models_framework_lacks_on_this_machine_is_refused(compose_one: ComposeOne) -> None:
    run = compose_one("precision=tf32", "model.framework=jax")

    with pytest.raises(ConfigError, match="precision=tf32 is refused on this CPU"):
        plan(run)
    assert (
        plan(compose_one("precision=tf32", "model.framework=null", "workload.command=true")).numerics.name == "emulated"
    )


def test_nccl_is_told_by_its_environment_and_by_one_setting_only(compose_one: ComposeOne) -> None:
    asked = ("strategy=ddp", "resources.gpus_per_node=4", "+cluster=karolina", "strategy.nccl.algo=tree")

    assert plan(compose_one(*asked), A100).environment["NCCL_ALGO"] == "Tree"
    with pytest.raises(ConfigError, match=r"workload\.env\.NCCL_ALGO would undo strategy\.nccl"):
        plan(compose_one(*asked, "+workload.env.NCCL_ALGO=Ring"), A100)


def test_on_this_machine_a_program_of_the_users_own_claims_one_core(tmp_path: Path) -> None:
    (recipe,) = planned_for(tmp_path)
    (own,) = planned_for(tmp_path, "workload.command=true")
    (asked,) = planned_for(tmp_path, "workload.command=true", "resources.cpus_per_task=2")

    assert [item.plan.environment["OMP_NUM_THREADS"] for item in (recipe, own, asked)] == ["2", "1", "2"]
