from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcml.errors import ConfigError
from hpcml.images.command import (
    exec_argv,
    gpu_for,
    passed_on,
    wrapped,
)
from hpcml.model.container import Bind, ContainerGpu
from tests.images.inside import bind


def test_the_plainest_command_has_a_clean_environment() -> None:
    assert exec_argv("/x.sif", "apptainer") == ["apptainer", "exec", "--cleanenv", "/x.sif"]


def test_everything_has_its_place_and_the_users_options_come_last() -> None:
    argv = exec_argv(
        "/x.sif",
        "/opt/bin/singularity",
        gpu=ContainerGpu.nv,
        binds=[bind("/b"), bind("/a", "/c", read_only=True)],
        cwd="/b/my work",
        options=["--overlay", "o.img"],
        writable_tmpfs=True,
        cleanenv=False,
    )

    assert argv == [
        *("/opt/bin/singularity", "exec", "--nv", "--writable-tmpfs", "--bind", "/b:/b:rw", "--bind", "/a:/c:ro"),
        *("--pwd", "/b/my work", "--overlay", "o.img", "/x.sif"),
    ]


def test_a_path_that_bind_would_split_is_mounted() -> None:
    argv = exec_argv("/x.sif", "apptainer", binds=[bind('/a,b:c"d', read_only=True)])

    assert argv[-3:-1] == ["--mount", 'type=bind,"src=/a,b:c""d","dst=/a,b:c""d",ro']


def test_what_is_bound_twice_is_bound_once_where_it_came_first() -> None:
    argv = exec_argv("/x.sif", "apptainer", binds=[bind("/a"), bind("/b"), bind("/a/"), bind("//a/.", "/a")])

    assert [word for word in argv if word.startswith("/") and ":" in word] == ["/a:/a:rw", "/b:/b:rw"]


@pytest.mark.parametrize("other", [bind("/b", "/d"), bind("/a", "/d", read_only=True)])
def test_two_things_in_one_place_are_refused(other: Bind) -> None:
    with pytest.raises(ConfigError, match=r"container\.binds: /d is to show .* already: choose another destination"):
        exec_argv("/x.sif", "apptainer", binds=[bind("/a", "/d"), other])


@pytest.mark.parametrize(
    ("wanted", "device", "vendor", "decided"),
    [
        ("auto", "cuda", "nvidia", "nv"),
        ("auto", "cuda", None, "nv"),
        ("auto", "cuda", "amd", "rocm"),
        ("auto", "cpu", "nvidia", "none"),
        ("none", "cuda", "nvidia", "none"),
        ("rocm", "cpu", None, "rocm"),
    ],
)
def test_the_driver_brought_inside_is_that_of_the_runs_device(
    wanted: str, device: str, vendor: str | None, decided: str
) -> None:
    assert gpu_for(ContainerGpu[wanted], device=device, vendor=vendor) is ContainerGpu[decided]


def test_of_the_hosts_environment_goes_inside_what_the_scheduler_and_the_network_need() -> None:
    kept = {
        "SLURM_JOB_ID": "1",
        "CUDA_VISIBLE_DEVICES": "2",
        "https_proxy": "p",
        "NCCL_DEBUG": "INFO",
        "HPCML_RUN_ID": "x",
    }
    dropped = {
        "PATH": "/",
        "LD_LIBRARY_PATH": "/",
        "PYTHONPATH": "/",
        "LD_PRELOAD": "/x",
        "NGC_API_KEY": "k",
        "HOME": "/",
    }

    assert passed_on({**kept, **dropped, "BASH_FUNC_ml%%": "() { :; }", "SLURM_BAD%": "x"}) == kept


@given(st.lists(st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"])), max_size=4))
def test_no_word_of_a_command_is_read_by_the_shell_before_it(words: list[str]) -> None:
    argv = wrapped(["/bin/prog", *words], {"A": "b c'd"})

    assert argv[-len(words) - 1 :] == ["/bin/prog", *words]
    assert argv[:2] == ["/bin/sh", "-c"]
    assert shlex.split(argv[2].split("; ")[1]) == ["export", "A=b c'd"]
