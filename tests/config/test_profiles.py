import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from string import Formatter

import pytest

from hpcml.config.compose import compose_from_cli
from hpcml.config.profiles import (
    Profile,
    check_name,
    get_profile,
    list_profiles,
    profile_text,
    to_fill_in,
    write_profile,
)
from hpcml.config.user import read_preferences
from hpcml.errors import ConfigError
from hpcml.model.cluster import Cluster, Queue, Resources, SchedulerName
from hpcml.model.container import RUNTIMES
from hpcml.model.pbs import PbsRequest, PbsSite
from hpcml.paths import resource_dir
from hpcml.units import parse_memory_mb
from hpcml.walltime import parse_walltime_s
from tests.conftest import ComposeOne

FOLDER = resource_dir("conf") / "cluster"
SITES = sorted(path.stem for path in FOLDER.glob("*.yaml") if path.stem != "local")
TEMPLATE_WORDS = {"nodes", "gpus", "gpus_total", "gpu_type", "cores"}
ALLIANCE = ["fir", "graham", "killarney", "narval", "nibi", "rorqual", "trillium", "vulcan"]
ACCOUNTS = {  # as the sites' own pages and their users write them
    "anselm": ["OPEN-0-0", "dd-19-37"],
    "gadi": ["ab12", "z00"],
    "lumi_g": ["project_465000000"],
    "tamia": ["aip-someprof"],
    **{name: ["def-someprof", "rrg-someprof-ab"] for name in ALLIANCE},
    "bridges2": ["abc123456p"],
    "frontier": ["ABC123", "stf007"],
    "summit": ["ABC123", "stf007"],
    "isaac_ng": ["ACF-UTK0011"],
    "delta": ["abcd-delta-gpu"],
    "perlmutter": ["m1234_g"],
}


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> list[Profile]:
    project = tmp_path_factory.mktemp("project")
    return [get_profile(name, project) for name in SITES]


def refusal_of(act: Callable[..., object], *words: object, **named: object) -> str:
    """Return what *act* is refused with; nothing where it is not."""
    try:
        act(*words, **named)
    except ConfigError as error:
        return str(error)
    return ""


def first_comment(path: Path) -> str:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "# @package _global_", path
    comment = lines[1 : next(place for place, line in enumerate(lines) if not line.startswith("#"))]
    return " ".join(line.removeprefix("# ") for line in comment)


def test_every_profile_composes_and_is_what_reading_its_file_gives(
    profiles: list[Profile], compose_one: ComposeOne
) -> None:
    for profile in profiles:
        name = profile.cluster.name
        account = ACCOUNTS.get(name, ["project"])[0]

        run = compose_one(f"+cluster={name}", f"resources.account={account}")

        assert run.cluster == profile.cluster
        assert run.resources.account == account, name
        assert run.resources.partition_or_queue == profile.resources.partition_or_queue, name


def test_a_profile_says_where_it_is_from_and_how_far_it_is_to_be_trusted(profiles: list[Profile]) -> None:
    words = {"decommissioned": "Decommissioned", "unknown": "Status unknown"}
    for profile in profiles:
        site, said = profile.cluster, first_comment(profile.path)
        assert site.name == profile.path.stem
        assert site.scheduler in set(SchedulerName) - {SchedulerName.local}, site.name
        assert site.status in ("active", *words), site.name
        assert site.site, site.name
        assert site.source, site.name
        assert any(note.startswith("verified: ") for note in site.notes), site.name
        assert all((word in said) == (status == site.status) for status, word in words.items()), site.name


def test_what_a_run_asks_for_by_default_fits_the_cluster(profiles: list[Profile]) -> None:
    for profile in profiles:
        site, wanted = profile.cluster, profile.resources
        names = [name for name in (wanted.partition_or_queue, site.gpu_queue) if name is not None]
        assert not site.queues or set(names) <= set(site.queues), site.name
        limits = [site.max_walltime, *(site.queues[name].max_walltime for name in names if name in site.queues)]
        asked_s = wanted.walltime_s
        assert all(asked_s <= parse_walltime_s(limit) for limit in limits if limit and asked_s), site.name
        assert (wanted.gpus_per_node or 0) <= (1 if site.gpus_per_node is None else site.gpus_per_node), site.name
        assert (wanted.cpus_per_task or 0) <= (site.cores_per_node or 10_000), site.name
        if wanted.mem and site.mem_per_node:
            assert parse_memory_mb(wanted.mem) <= parse_memory_mb(site.mem_per_node), site.name


def test_no_queue_is_allowed_more_time_than_the_cluster(profiles: list[Profile]) -> None:
    for profile in profiles:
        site = profile.cluster
        limits = [queue.max_walltime for queue in site.queues.values() if queue.max_walltime]
        assert not limits or site.max_walltime is not None, site.name
        assert all(parse_walltime_s(limit) <= parse_walltime_s(site.max_walltime or "") for limit in limits), site.name


def test_gpus_are_asked_for_by_a_template_that_can_be_filled(profiles: list[Profile]) -> None:
    begins = {"slurm": "--", "pbs": ":", "lsf": "-gpu", "flux": "--"}
    for site in (profile.cluster for profile in profiles):
        if site.gpus_per_node == 0:
            assert site.gpu_request is None, site.name
            assert site.gpu_queue is None, site.name
            continue
        assert site.gpu_request is not None, site.name
        used = {word for _, word, _, _ in Formatter().parse(site.gpu_request) if word}
        assert used <= TEMPLATE_WORDS, site.name
        assert ("gpu_type" in used) == (site.gpu_type is not None), site.name
        if site.gpu_request:
            assert used & {"gpus", "gpus_total"}, site.name
            assert site.gpu_request.startswith(begins[site.scheduler.name]), site.name
        else:  # the queue gives whole GPU nodes
            assert site.whole_nodes, site.name
            assert site.gpu_queue is not None, site.name


def test_shares_of_a_node_add_up_to_no_more_than_a_node(profiles: list[Profile]) -> None:
    for profile in profiles:
        site = profile.cluster
        if site.cores_per_gpu and site.gpus_per_node and site.cores_per_node:
            assert site.cores_per_gpu * site.gpus_per_node <= site.cores_per_node, site.name
            # then all cores are asked for
            is_whole = site.scheduler is SchedulerName.pbs and site.whole_nodes and site.pbs.says_cores
            assert profile.resources.cpus_per_task == (None if is_whole else site.cores_per_gpu), site.name


def test_compute_capabilities_are_nvidias(profiles: list[Profile]) -> None:
    for site in (profile.cluster for profile in profiles):
        if site.gpu_vendor == "nvidia" and site.gpu_model is not None:
            assert re.fullmatch(r"[3-9]\.\d", site.gpu_compute_capability or ""), site.name
        else:
            assert site.gpu_compute_capability is None, site.name


def test_the_account_pattern_matches_the_accounts_that_the_site_shows(profiles: list[Profile]) -> None:
    for site in (profile.cluster for profile in profiles):
        pattern, examples = site.account_pattern, ACCOUNTS.get(site.name, [])
        assert (pattern is not None) == bool(examples), site.name
        assert pattern is None or all(re.search(pattern, example) for example in examples), site.name


def test_what_a_job_script_takes_over_is_fit_for_a_shell(profiles: list[Profile]) -> None:
    for site in (profile.cluster for profile in profiles):
        assert site.scratch is None or re.fullmatch(r"[/$][\w/$]+", site.scratch), site.name
        assert site.proxy is None or site.proxy.startswith("http://"), site.name
        assert site.host_driver is None or re.fullmatch(r"[\d.]+", site.host_driver), site.name
        assert site.container_runtime in (None, *RUNTIMES), site.name


def test_all_gpus_of_a_whole_node_can_be_asked_for(tmp_path: Path, compose_one: ComposeOne) -> None:
    for name in ("dgx2", "frontier", "juwels_booster", "perlmutter"):
        gpus = get_profile(name, tmp_path).cluster.gpus_per_node

        run = compose_one(f"+cluster={name}", "strategy=ddp", f"resources.gpus_per_node={gpus}", "resources.account=x")

        assert run.resources.gpus_per_node == gpus, name


def test_a_gpu_on_salomon_is_refused_with_the_reason(compose_one: ComposeOne) -> None:
    with pytest.raises(ConfigError, match="cluster=salomon has 0 a node"):
        compose_one("+cluster=salomon", "resources.gpus_per_node=1")


def test_precisions_that_a_sites_gpu_lacks_are_refused(compose_one: ComposeOne) -> None:
    for name, precision in (("anselm", "amp"), ("barbora", "tf32"), ("bridges", "amp")):
        with pytest.raises(ConfigError, match=f"precision=.* is refused on {'.*'} .compute capability"):
            compose_one(f"+cluster={name}", f"precision={precision}")


FOUND = Cluster(
    name="mine",
    scheduler=SchedulerName.slurm,
    gpu_type="v100-32",
    gpus_per_node=4,
    gpu_request="--gpus-per-node={gpu_type}:{gpus}",
    queues={
        "on": Queue(max_walltime="48:00:00", gpus=True, note="a: b # c, {d} ${e} 'f' \"g\""),
        "1e3": Queue(),
        "01:00": Queue(gpus=False),
    },
    notes=["true", "é: #", "${x}"],
    source="asked",
)
ASKED = Resources(partition="on", gpus_per_node=1, walltime="01:00:00")


def project_with(tmp_path: Path, name: str, text: str) -> Path:
    file = tmp_path / "conf" / "cluster" / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return tmp_path


def test_a_written_profile_is_read_back_as_it_was(tmp_path: Path) -> None:
    path = write_profile(FOUND, ASKED, tmp_path / "conf" / "cluster", head=["Mine."])

    assert get_profile("mine", tmp_path) == Profile(cluster=FOUND, resources=ASKED, path=path)


def test_a_written_profile_composes(tmp_path: Path) -> None:
    write_profile(FOUND, ASKED, tmp_path / "conf" / "cluster", head=["Mine."])

    (point,) = compose_from_cli(["+cluster=mine"], project=tmp_path)

    assert point.run.cluster == FOUND
    assert point.run.resources.walltime == "01:00:00"


def test_what_nobody_told_stands_in_the_file_as_a_comment() -> None:
    text = profile_text(FOUND, ASKED, head=["Mine."])

    assert "  # gpu_model: # " in text
    assert "gpu_model" in to_fill_in(FOUND)
    assert "gpu_model" not in to_fill_in(Cluster(name="x", scheduler=SchedulerName.pbs, gpus_per_node=0))


def test_a_profile_is_never_overwritten(tmp_path: Path) -> None:
    path = write_profile(FOUND, ASKED, tmp_path, head=["Mine."])
    before = path.read_text(encoding="utf-8")

    with pytest.raises(ConfigError, match="exists already"):
        write_profile(FOUND, Resources(), tmp_path, head=["Another."])
    assert path.read_text(encoding="utf-8") == before


def test_a_name_that_hydra_could_not_find_is_refused() -> None:
    for name in ("karolina", "local", "../up", "a b", "", "a,b", "-x", "a" * 65):
        assert refusal_of(check_name, name), name


def test_a_profile_may_build_on_another(tmp_path: Path) -> None:
    project = project_with(tmp_path, "workstation", "defaults:\n  - local\nmax_parallel: 1\n")

    found = get_profile("workstation", project)

    assert found.cluster == Cluster(name="workstation", scheduler=SchedulerName.local, max_parallel=1)


@pytest.mark.parametrize("bases", ["[_self_, base]", "[base, _self_]", "[/cluster/base, _self_]", "[base]", "[nosuch]"])
def test_a_profile_built_on_another_is_shown_and_listed_as_it_is_composed(
    tmp_path: Path, bases: str, caplog: pytest.LogCaptureFixture
) -> None:
    head = "# @package _global_\n"
    project_with(tmp_path, "base", f"{head}cluster: {{name: base, scheduler: slurm, gpus_per_node: 4, site: there}}\n")
    project_with(tmp_path, "mine", f"{head}defaults: {bases}\ncluster: {{gpus_per_node: 8, name: mine}}\n")

    listed = {profile.cluster.name: profile for profile in list_profiles(tmp_path)}

    if "nosuch" in bases:
        assert "mine" not in listed
        assert "left out: " in caplog.text
        assert "mine.yaml: cluster/mine.yaml: Could not load 'cluster/nosuch'" in caplog.text
        return
    (point,) = compose_from_cli(["cluster=mine"], project=tmp_path)
    assert listed["mine"].cluster == replace(point.run.cluster, name="mine")
    assert listed["mine"].cluster.gpus_per_node == (4 if bases.startswith("[_self_") else 8)
    assert listed["mine"] == get_profile("mine", tmp_path)


def test_profiles_are_those_of_hpcml_of_the_project_and_of_the_folders_given(tmp_path: Path) -> None:
    project = project_with(tmp_path / "project", "ours", "name: ours\nscheduler: pbs\n")
    site = project_with(tmp_path / "site", "theirs", "name: theirs\nscheduler: slurm\n") / "conf"
    project_with(tmp_path / "site", "karolina", "name: fake\nscheduler: pbs\n")

    found = {profile.path.stem: profile for profile in list_profiles(project, [site])}

    assert {"local", *SITES, "ours", "theirs"} == set(found)
    assert found["karolina"].cluster.name == "karolina"  # as for Hydra, nothing hides a shipped one


def test_a_profile_that_cannot_be_read_is_named_in_one_line(tmp_path: Path) -> None:
    for text, says in {
        "name: [": "mine.yaml",
        "- a\n": "mapping",
        "name: mine\nscheduler: l s f\n": "none of local, slurm, pbs",
        "name: mine\nscheduler: pbs\ncolour: red\n": "unknown key cluster.colour",
        "scheduler: pbs\n": "missing key cluster.name",
        "name: ${nothing}\nscheduler: pbs\n": "mine.yaml",
    }.items():
        project = project_with(tmp_path, "mine", text)

        said = refusal_of(get_profile, "mine", project)

        assert says in said, text
        assert "mine.yaml" in said, text
        assert "\n" not in said, text


def test_an_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cluster=atlantis is not known: choose anselm, archer2_gpu, aspire2a"):
        get_profile("atlantis", tmp_path)


def test_a_profile_built_on_another_is_listed_by_the_word_to_type(tmp_path: Path) -> None:
    folder = tmp_path / "conf" / "cluster"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - karolina\nresources:\n  partition: qgpu_exp\n"
    )

    found = {profile.cluster.name: profile.resources.partition for profile in list_profiles(tmp_path)}

    assert (found["mine"], found["karolina"]) == ("qgpu_exp", "qgpu")


def test_where_nodes_have_another_name_on_the_fast_network_the_profile_says_its_ending(tmp_path: Path) -> None:
    assert get_profile("juwels_booster", tmp_path).cluster.rendezvous_suffix == "i"
    assert get_profile("karolina", tmp_path).cluster.rendezvous_suffix == ""


def test_groups_within_a_group_are_written_and_read_back(tmp_path: Path) -> None:
    site = Cluster(name="mine", scheduler=SchedulerName.pbs, pbs=PbsSite(account="-P", chunk={"system": "x"}))
    wanted = Resources(pbs=PbsRequest(filesystems="home", options={"job_priority": "regular"}))

    path = write_profile(site, wanted, tmp_path / "conf" / "cluster", head=["Mine."])

    assert get_profile("mine", tmp_path) == Profile(cluster=site, resources=wanted, path=path)


WRONG = (
    ("gpus_per_node: four", "cluster/ours.yaml: cluster.gpus_per_node: Value 'four'"),
    ("whole_nodes: maybe", "cluster/ours.yaml: cluster.whole_nodes: Value 'maybe' is not a valid bool"),
    ("gpu_modl: A100", "cluster/ours.yaml: cluster.gpu_modl: Key 'gpu_modl' not in 'Cluster'"),
    ("modules: Python CUDA", "cluster/ours.yaml: cluster.modules: Invalid value assigned"),
    ("scratch: [a]", "cluster/ours.yaml: cluster.scratch: Cannot convert"),
    ("queues: gpu", "cluster/ours.yaml: cluster.queues: Cannot assign str"),
    ("queues: [gpu, cpu]", "cluster/ours.yaml: Cannot merge"),
    ("queues: {gpu: {gpu: true}}", "cluster/ours.yaml: cluster.queues.gpu.gpu: Key 'gpu' not in 'Queue'"),
    ("lsf: x", "cluster/ours.yaml: "),
    (
        "slurm: {refuses: [job-name]}",
        "cluster.slurm.refuses: 'job-name' is none that can be left out: choose ntasks-per-node, ",
    ),
    ("mem_per_node: lots", "cluster.mem_per_node='lots' is no memory size"),
    ("max_walltime: 2 days", "cluster.max_walltime='2 days' is no walltime"),
    ("queues: {gpu: {max_walltime: two}}", "cluster.queues.gpu.max_walltime='two' is no walltime"),
    ("gpu_vendor: NVIDIA", "cluster.gpu_vendor=NVIDIA: choose nvidia, amd, intel"),
    ("status: alive", "cluster.status=alive: choose active"),
    ("gpus_per_node: -4", "cluster.gpus_per_node=-4 must not be negative"),
    ("cores_per_node: 0", "cluster.cores_per_node=0 must be at least 1"),
)


def test_what_is_wrong_in_a_profile_is_said_by_its_key(tmp_path: Path) -> None:
    for wrong, said in WRONG:
        project = project_with(tmp_path, "ours", f"name: ours\nscheduler: slurm\n{wrong}\n")

        found = refusal_of(compose_from_cli, ["+cluster=ours", "workload.command=true"], project=project)

        assert found.startswith(said), (wrong, found)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"scheduler: slurm\n\tgpus_per_node: 4\n", ", line 2: found character .* indent with spaces, not with tabs$"),
        (b"scheduler: slurm\nscheduler: pbs\n", ", line 2: found duplicate key scheduler$"),
        (b"site: caf\xe9\n", ": 'utf-8' codec can't decode .*: save it in UTF-8$"),
    ],
)
def test_a_file_that_is_no_yaml_is_refused_with_its_place_and_the_remedy(
    content: bytes, says: str, tmp_path: Path
) -> None:
    file = tmp_path / "conf" / "cluster" / "odd.yaml"
    file.parent.mkdir(parents=True)
    file.write_bytes(content)

    for read in (
        lambda: get_profile("odd", project=tmp_path),
        lambda: compose_from_cli(["+cluster=odd"], project=tmp_path),
    ):
        with pytest.raises(ConfigError, match=f"^{re.escape(str(file))}{says}"):
            read()


def test_a_file_of_accounts_that_is_no_yaml_is_refused_with_its_place_and_the_remedy(tmp_path: Path) -> None:
    file = tmp_path / "hpcml.yaml"
    file.write_text("accounts:\n\tkarolina: OPEN-0-0\n")

    with pytest.raises(ConfigError, match=f"^{re.escape(str(file))}, line 2: .* indent with spaces, not with tabs$"):
        read_preferences(file)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("accounts:\n  karolina:\n", "accounts.karolina is empty"),
        ("accounts: {karolina: ''}\n", "accounts.karolina is empty"),
        ("account:\n", "account is empty"),
        ("account: yes\n", "account is True"),
        ("account: my project\n", "account is 'my project'"),
        ("accounts: {karolina: [a, b]}\n", "accounts.karolina is ['a', 'b']"),
    ],
)
def test_a_line_of_accounts_without_an_account_is_refused_and_charges_nobody(
    tmp_path: Path, text: str, says: str
) -> None:
    file = tmp_path / "hpcml.yaml"
    file.write_text(text)

    remedy = "write an account, which is one word, or take the line out"
    with pytest.raises(ConfigError, match=f"^{re.escape(f'{file}: {says}: {remedy}')}$"):
        read_preferences(file)


def test_an_account_that_is_a_number_is_its_text(tmp_path: Path) -> None:
    file = tmp_path / "hpcml.yaml"
    file.write_text("account: 4711\naccounts: {karolina: OPEN-1-2}\n")

    known = read_preferences(file)

    assert (known.account, known.account_for("karolina")) == ("4711", "OPEN-1-2")


def test_what_stands_where_an_option_is_looked_for_and_is_no_file_of_options_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "conf" / "cluster"
    (folder / "folder.yaml").mkdir(parents=True)
    (folder / "link.yaml").symlink_to("gone.yaml")

    for name, says in {
        "folder": "is a folder: an option is a file of that name",
        "link": "is a link to gone.yaml, and nothing is there: mend the link, or choose another option",
    }.items():
        with pytest.raises(ConfigError, match=f"^{re.escape(f'cluster={name}: {folder / name}.yaml {says}')}$"):
            compose_from_cli([f"+cluster={name}"], project=tmp_path)
