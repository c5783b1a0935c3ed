import itertools
from pathlib import Path

import pytest
import yaml

from hpcml.config.profiles import list_profiles
from hpcml.errors import ConfigError
from hpcml.images import releases
from hpcml.images.releases import check, newest, reliance, served_branches, version_of

PYTORCH, TENSORFLOW, TENSORRT = "nvidia/pytorch", "nvidia/tensorflow", "nvidia/tensorrt"
P100, V100, T4, A100, H100 = (6, 0), (7, 0), (7, 5), (8, 0), (9, 0)


@pytest.mark.parametrize(
    ("image", "gpu", "driver", "tag"),
    [
        (PYTORCH, P100, None, "24.12-py3"),
        (PYTORCH, V100, None, "24.12-py3"),
        (PYTORCH, T4, None, "26.03-py3"),
        (PYTORCH, A100, None, "26.03-py3"),
        (PYTORCH, None, None, "26.03-py3"),
        (PYTORCH, V100, "560.35.05", "24.12-py3"),
        (PYTORCH, A100, "560.35.04", "24.10-py3"),  # one below 24.11's
        (PYTORCH, A100, "570.86.10", "25.02-py3"),
        (PYTORCH, A100, "570.124.6", "25.03-py3"),  # 6 is 06
        (PYTORCH, A100, "580.95.05", "25.11-py3"),
        (PYTORCH, A100, "999", "26.03-py3"),
        (PYTORCH, A100, "535.183.01", "24.12-py3"),  # an older branch that the compatibility package serves
        (PYTORCH, V100, "470.57.02", "24.12-py3"),
        (PYTORCH, V100, "470.42.01", "21.10-py3"),  # of that branch, but too old
        (PYTORCH, V100, "450.80.02", "23.12-py3"),
        (PYTORCH, V100, "418.87.01", "21.12-py3"),
        (PYTORCH, P100, "410.104", "20.03-py3"),
        (TENSORFLOW, A100, None, "25.02-tf2-py3"),
        (TENSORFLOW, P100, None, "24.12-tf2-py3"),
        (TENSORRT, (3, 7), None, "19.02-py3"),
        (TENSORRT, V100, None, "24.12-py3"),
        ("nvidia/cuda", V100, None, "12.6.3-cudnn-devel-ubuntu24.04"),
        ("nvidia/cuda", A100, "580.65.06", "13.0.1-cudnn-devel-ubuntu24.04"),
        ("nvidia/cuda", A100, "535.183.01", "12.6.3-cudnn-devel-ubuntu24.04"),
        ("nvidia/rapidsai/base", V100, None, "25.02-cuda12.8-py3.12"),
        ("nvidia/rapidsai/base", None, None, "26.04-cuda13-py3.12"),
        ("nvidia/jax", A100, "595.45.04", "26.03-py3"),
        ("nvidia/jax", V100, None, "24.10-py3"),
        ("nvidia/nemo", A100, "550.54.15", "24.07"),
    ],
)
def test_the_newest_release_that_a_gpu_and_a_driver_run(
    image: str, gpu: tuple[int, int] | None, driver: str | None, tag: str
) -> None:
    assert newest(image, gpu, driver, data_centre=True).tag == tag


@pytest.mark.parametrize(
    ("gpu", "driver", "tag"),
    [(P100, "440.33.01", "20.03-py3"), (V100, "535.183.01", "23.07-py3"), (A100, "570.86.10", "25.02-py3")],
)
def test_on_a_gpu_of_no_data_centre_the_newest_is_taken_that_needs_no_compatibility(
    gpu: tuple[int, int], driver: str, tag: str
) -> None:
    assert newest(PYTORCH, gpu, driver).tag == tag
    assert reliance(PYTORCH, tag, driver) is None


def test_what_relies_on_compatibility_says_so_and_with_which_drivers() -> None:
    said = reliance(PYTORCH, "24.12-py3", "535.183.01")

    assert said is not None
    assert "24.12-py3 is for driver 560.35.05 and newer; 535.183.01 runs it by CUDA's forward compatibility" in said
    assert served_branches(PYTORCH, "24.12-py3") == ("470.57", "525.85", "535.86")
    assert served_branches(PYTORCH, "25.06-py3") == served_branches("me/pytorch", "24.12-py3") == ()


@pytest.mark.parametrize(
    ("image", "tag", "framework", "bounds"),
    [
        (PYTORCH, "24.04-py3", "torch", ("2.3.0a0+6ddf5cf85e", "2.3.0a0+6ddf5cf85e")),
        (PYTORCH, "24.05-py3", "torch", ("2.3.0a0+6ddf5cf85e", "2.4.0a0+f70bd71a48")),  # nobody read that month
        (PYTORCH, "26.09-py3", "torch", ("2.11.0a0+a6c236b9fd1", None)),
        (PYTORCH, "19.11-py3", "torch", (None, "1.12.0a0+8a1a93a9")),
        (PYTORCH, "my-own", "torch", (None, None)),
        (TENSORFLOW, "24.12-tf2-py3", "tensorflow", ("2.6", "2.17")),
        (TENSORFLOW, "21.12-tf2-py3", "tensorflow", ("2.6", "2.15")),  # before 2.16 was published
        ("nvidia/jax", "26.06-py3", "jax", (None, None)),
    ],
)
def test_the_version_of_a_framework_lies_between_those_that_were_read(
    image: str, tag: str, framework: str, bounds: tuple[str | None, str | None]
) -> None:
    assert version_of(image, tag, framework) == bounds


def test_a_site_may_allow_no_newer_one() -> None:
    assert newest(PYTORCH, A100, None, not_after="24.12").tag == "24.12-py3"


@pytest.mark.parametrize(
    ("image", "gpu", "driver", "says"),
    [
        (PYTORCH, (3, 5), None, "no release of nvidia/pytorch .* fits compute capability 3.5: set container.tag"),
        (TENSORFLOW, A100, "367.48", "fits compute capability 8.0, driver 367.48"),
        ("me/pytorch", A100, None, "knows only the releases of nvidia/pytorch, nvidia/tensorflow, nvidia/tensorrt"),
        ("nvidia/cuda", A100, "470.57.02", "12.6.3-cudnn-devel-ubuntu24.04 to 13.0.1-.* fits compute capability 8.0"),
        (PYTORCH, A100, "new", "cluster.host_driver='new' is no version"),
    ],
)
def test_where_none_fits_it_says_so(image: str, gpu: tuple[int, int], driver: str | None, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        newest(image, gpu, driver)

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("image", "tag", "gpu", "driver", "says"),
    [
        (
            PYTORCH, "25.01-py3", V100, None,
            "container.tag=25.01-py3 needs a GPU of compute capability 7.5: 24.12 is the last for V100 (7.0)",
        ),
        (PYTORCH, "25.01-py3", P100, None, "24.12 is the last for P100 (6.0)"),
        (PYTORCH, "25.05-py3", V100, None, "24.12 is the last for V100 (7.0)"),  # a month that is not in the table
        (PYTORCH, "27.01-py3", V100, None, "24.12 is the last for V100 (7.0)"),  # nor are later ones
        (TENSORFLOW, "25.02-tf2-py3", (6, 1), None, "24.12 is the last for 6.1"),
        (PYTORCH, "19.03-py3", (3, 7), None, "none since 18.12 runs on K80 (3.7)"),
        (TENSORRT, "19.05-py3", (3, 7), None, "19.02 is the last for K80 (3.7)"),
        (PYTORCH, "25.08-py3", A100, "570.86.10", "driver 580.82.07, and cluster.host_driver=570.86.10: 25.02-py3 is"),
        ("nvidia/cuda", "13.1.0-devel-ubuntu24.04", V100, None, "capability 7.5: 12.6.3-cudnn-devel-ubuntu24.04 is"),
        ("nvidia/rapidsai/base", "25.10-cuda13-py3.12", A100, "535.54", "(CUDA 13) needs driver 580.65.06, and"),
        (PYTORCH, "24.12-py3", A100, "510.47.03", "(on a GPU of a data centre also 470.57, 525.85, 535.86)"),
    ],
)  # fmt: skip
def test_a_tag_that_cannot_run_is_refused_with_the_one_that_can(
    image: str, tag: str, gpu: tuple[int, int], driver: str | None, says: str
) -> None:
    reason = check(image, tag, gpu, driver, data_centre=True)

    assert reason is not None
    assert says in reason
    assert "\n" not in reason


@pytest.mark.parametrize(
    ("image", "tag", "gpu", "driver"),
    [
        (PYTORCH, "24.12-py3", V100, None),
        (PYTORCH, "24.12-py3", V100, "535.183.01"),
        (PYTORCH, "26.03-py3", A100, None),
        (PYTORCH, "24.05-py3", A100, "510.47.03"),  # of a month that nobody has read nothing is said
        (PYTORCH, "17.04", (3, 5), None),
        (PYTORCH, "my-own-tag", (3, 5), None),
        ("nvidia/cuda", "12.6.3-devel-ubuntu22.04", V100, "525.60.13"),
        ("nvidia/cuda", "latest", V100, "525.60.13"),
        ("me/pytorch", "25.01-py3", V100, None),
        (PYTORCH, "25.01-py3", None, None),
    ],
)
def test_a_tag_that_may_run_is_not_refused(
    image: str, tag: str, gpu: tuple[int, int] | None, driver: str | None
) -> None:
    assert check(image, tag, gpu, driver, data_centre=True) is None


def test_a_tag_newer_than_a_site_runs_is_refused() -> None:
    assert check(PYTORCH, "25.01-py3", A100, None, not_after="24.12") == (
        "container.tag=25.01-py3: cluster.ngc_max_release=24.12 is the newest that the site runs"
    )


def test_what_is_chosen_is_never_refused() -> None:
    drivers = [
        None,
        "418.87",
        "450.80.02",
        "470.57.02",
        "510.47.03",
        "535.183.01",
        "560.35.05",
        "580.95.05",
        "595.45.04",
    ]
    for image, gpu, driver in itertools.product((PYTORCH, TENSORFLOW), (P100, V100, T4, A100, H100), drivers):
        try:
            chosen = newest(image, gpu, driver, data_centre=gpu == A100)
        except ConfigError:
            continue

        assert check(image, chosen.tag, gpu, driver, data_centre=gpu == A100) is None


def test_each_profile_with_an_nvidia_gpu_gets_the_release_that_it_allows(tmp_path: Path) -> None:
    sites = [profile.cluster for profile in list_profiles(tmp_path) if profile.cluster.gpu_vendor == "nvidia"]
    known = [site for site in sites if site.compute_capability and site.compute_capability >= P100]
    assert len(known) > 10
    for site in known:
        limit = site.ngc_max_release

        chosen = newest(PYTORCH, site.compute_capability, site.host_driver, not_after=limit, data_centre=True)

        # A site whose driver is known to be older than its limit asks for is told by that.
        assert limit in (None, chosen.release) or (site.host_driver and chosen.release < limit), site.name


def test_the_table_is_in_order_names_its_sources_and_repeats_nothing() -> None:
    table = yaml.safe_load(releases._TABLE.read_text(encoding="utf-8"))
    months = [row["release"] for row in table["releases"]]

    assert months == sorted(set(months))
    for row in table["releases"]:
        assert row["source"] in ("matrix", "triton")
        assert set(row.get("from", {}).values()) <= {"inferred", "triton", "jetson", "tensorboard", "published"}
        assert set(row.get("from", {})) <= set(row)
        for branch in row.get("branches", ()):
            assert releases._numbers(branch) < releases._numbers(row["driver"]), row
    floors = [releases._capability(row["compute_capability"]) for row in table["releases"]]
    assert floors == sorted(floors)  # `check` relies on it for months that are not there
    assert set(table["exceptions"]) <= set(table["images"])


def test_a_figure_that_was_not_read_is_marked() -> None:
    assert newest(PYTORCH, None, "470.42.01").uncertain == {
        "compute_capability": "inferred",
        "tensorflow": "tensorboard",
    }
    assert newest(PYTORCH, A100, None).uncertain == {"pytorch": "jetson"}
    assert newest(PYTORCH, V100, None).framework == "2.6.0a0+df5bbc09d1"
