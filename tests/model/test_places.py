from pathlib import Path

import pytest

from hpcml.errors import ConfigError
from hpcml.paths import locate


@pytest.mark.parametrize(
    ("environ", "home"),
    [
        ({"HPCML_HOME": "/scratch/me", "XDG_DATA_HOME": "/x", "HOME": "/home/me"}, "/scratch/me"),
        ({"XDG_DATA_HOME": "/x", "HOME": "/home/me"}, "/x/hpcml"),
        ({"HOME": "/home/me"}, "/home/me/.local/share/hpcml"),
    ],
)
def test_the_home_is_what_was_said_else_where_xdg_puts_data(environ: dict[str, str], home: str) -> None:
    places = locate(environ)

    assert places.home == Path(home)
    assert places.store_url == f"{home}/store.db"
    assert places.runs == Path(home) / "runs"


def test_the_command_line_goes_before_the_environment() -> None:
    places = locate({"HPCML_HOME": "/a", "HPCML_STORE": "/b.db"}, home="/c", store="/d.db")

    assert (places.home, places.store_url) == (Path("/c"), "/d.db")


def test_results_never_go_to_a_temporary_folder_silently() -> None:
    with pytest.raises(ConfigError, match="HPCML_HOME"):
        locate({"TMPDIR": "/scratch/tmp"})
