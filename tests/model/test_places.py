from pathlib import Path

import pytest

from hpcml.errors import ConfigError
from hpcml.paths import locate, without_password


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


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("postgresql://ada:se@cr:et/x@db:5432/hpcml", "postgresql://ada:***@db:5432/hpcml"),
        ("--store=postgresql+psycopg://ada:secret@/hpcml", "--store=postgresql+psycopg://ada:***@/hpcml"),
        (
            "postgresql://ada@db/hpcml?password=se&sslpassword=cret&a=b",
            "postgresql://ada@db/hpcml?password=***&sslpassword=***&a=b",
        ),
        ("postgresql://ada@db/hpcml", "postgresql://ada@db/hpcml"),
        ("workload.command=a://b:c@d", "workload.command=a://b:c@d"),
    ],
)
def test_a_password_in_a_url_is_not_shown(word: str, shown: str) -> None:
    assert without_password(word) == shown
