"""Who could have written what hpcml executes: modes, owners, ACLs, and homes that others share."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcml.commands.collect import claim
from hpcml.commands.submit.snapshot import is_everything
from hpcml.errors import NotPrivateError
from hpcml.paths import home_of_user, locate
from hpcml.runs import private
from hpcml.runs.atomic import create_text, write_text
from hpcml.runs.layout import home_of
from tests.runs.two_users import ADA, EVE, GROUP, ROOT, User, folder_of_the_group, let_in_by_acl, needs_root

pytestmark = needs_root()


@pytest.fixture
def project() -> Iterator[Path]:
    """A project's folder, in which each of a group may do everything: 2770, of root."""
    with folder_of_the_group() as folder:
        yield folder


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode) & 0o777


def make(home: Path) -> None:
    private.claim_home(home)
    private.make_folder(home / "runs" / "default" / "uid", parents=True)
    private.write_file(home / "runs" / "default" / "uid" / "job.sh", "true\n")
    write_text(home / "runs" / "default" / "uid" / "run.json", "{}")
    create_text(home / "submissions.json", "{}")
    with private.open_file(home / "log", "ab") as file:
        file.write(b"x")


def text_of(run: Path) -> str:
    return private.read(run / "run.json", top=home_of(run / "run.json"))


def opened(home: Path, mode: int = 0o777) -> None:
    """Leave a home as somebody made it who wanted to share."""
    (home / "runs" / "default" / "uid").mkdir(parents=True)
    (home / "runs" / "default" / "uid" / "run.json").write_text("{}")
    for place in (home, home / "runs", home / "runs" / "default"):
        place.chmod(mode)
    (home / "runs" / "default" / "uid").chmod(0o700)


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077])
def test_what_is_made_is_the_owners_whatever_the_umask(project: Path, umask: int) -> None:
    ADA.does(make, project / "home", umask=umask)

    assert {mode_of(path) for path in [project / "home", *project.rglob("home/**/*")] if path.is_dir()} == {0o700}
    assert {mode_of(path) for path in project.rglob("*") if path.is_file()} == {0o600}
    assert ADA.does(text_of, project / "home" / "runs" / "default" / "uid") == "{}"


def test_an_acl_that_is_inherited_lets_nobody_in(project: Path) -> None:
    let_in_by_acl(project, EVE)

    ADA.does(make, project / "home")

    assert "system.posix_acl_access" in os.listxattr(project / "home")  # inherited, and of no effect
    with pytest.raises(PermissionError):
        EVE.does(os.listdir, project / "home")
    assert ADA.does(text_of, project / "home" / "runs" / "default" / "uid") == "{}"


def test_an_acl_on_a_file_is_seen_in_its_mode(project: Path) -> None:
    (project / "open").mkdir()
    (project / "open").chmod(0o777)
    let_in_by_acl(project / "open", EVE)
    run = project / "open" / "runs" / "default" / "uid"
    ADA.does(run.mkdir, 0o777, True)  # noqa: FBT003 - parents
    ADA.does((run / "run.json").write_text, "{}")

    with pytest.raises(NotPrivateError, match="may be written by others"):
        ADA.does(text_of, run)


@pytest.mark.parametrize("who", [ADA, ROOT])
def test_a_home_that_was_open_is_closed_once(project: Path, who: User) -> None:
    home = project / "home"
    who.does(opened, home, 0o775)

    assert [who.does(private.claim_home, home) for _ in range(2)] == [True, False]

    assert {mode_of(place) for place in (home, home / "runs", home / "runs" / "default")} == {0o700}
    assert who.does(text_of, home / "runs" / "default" / "uid") == "{}"


def test_what_is_not_of_hpcml_in_a_home_stays_to_be_read(project: Path) -> None:
    home = project / "home"
    ADA.does(opened, home)
    ADA.does((home / "thesis").mkdir)

    assert [ADA.does(private.claim_home, home) for _ in range(2)] == [True, False]
    assert (mode_of(home), mode_of(home / "runs")) == (0o755, 0o700)
    assert ADA.does(text_of, home / "runs" / "default" / "uid") == "{}"


@pytest.mark.parametrize("place", ["mine", "runs/mine", "runs/default/mine", "submissions/mine"])
def test_a_home_with_files_of_others_is_refused_and_nothing_is_changed(project: Path, place: str) -> None:
    home = project / "home"
    ADA.does(opened, home)
    ADA.does((home / "submissions").mkdir, 0o777)
    (home / "submissions").chmod(0o777)
    EVE.does((home / place).mkdir)

    with pytest.raises(NotPrivateError, match=f"is shared: {place} belongs to user {EVE.uid}: choose one of your own"):
        ADA.does(private.claim_home, home)
    assert mode_of(home) == 0o777


def test_a_home_of_another_or_for_all_is_refused(project: Path) -> None:
    EVE.does(opened, project / "home")
    for home, why in ((project / "home", f"belongs to user {EVE.uid}"), (project, "is for others to write to")):
        with pytest.raises(NotPrivateError, match=why):
            ADA.does(private.claim_home, home)
    project.chmod(0o1777)  # as /tmp, which is root's
    with pytest.raises(NotPrivateError, match="is for others to write to"):
        private.claim_home(project)


def test_files_that_come_and_go_meanwhile_make_a_home_no_less_ones_own(tmp_path: Path) -> None:
    home, done = tmp_path / "home", threading.Event()
    private.claim_home(home)
    (home / "store.db").touch()

    def write() -> None:
        while not done.is_set():
            (home / "store.db-journal").touch()
            (home / "store.db-journal").unlink()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        closed = [private.claim_home(home) for _ in range(2000)]
    finally:
        done.set()
        writer.join()

    assert not any(closed)


def begun_without_a_home(home: Path) -> None:
    os.environ.pop("HOME", None)
    is_everything(home.parent)
    claim(locate({"HPCML_HOME": str(home)}))


def test_a_user_that_the_machine_does_not_know_needs_no_home_but_hpcmls(project: Path) -> None:
    ADA.does(begun_without_a_home, project / "deep" / "hpcml")

    assert ADA.does(home_of_user) == Path(os.environ.get("HOME", "/"))


def test_what_somebody_put_in_the_place_of_a_home_is_noticed(project: Path) -> None:
    home = project / "home"
    ADA.does(make, home)
    EVE.does(home.rename, project / "away")  # she may, in a folder of the group without the sticky bit
    EVE.does(opened, home)

    for act in (lambda: ADA.does(private.claim_home, home), lambda: ADA.does(text_of, home / "runs/default/uid")):
        with pytest.raises(NotPrivateError, match=f"belongs to user {EVE.uid}"):
            act()
    assert ADA.does(private.exchangeable, project / "away") == project
    project.chmod(0o3770)
    assert ADA.does(private.exchangeable, project / "away") is None


def replace_run(run: Path) -> None:
    run.rename(run.with_name("away"))
    run.mkdir()
    (run / "run.json").write_text('"hers"')


def replace_experiment(run: Path) -> None:
    run.parent.rename(run.parent.with_name("away"))
    run.mkdir(parents=True)
    (run / "run.json").write_text('"hers"')


def link_run(run: Path) -> None:
    theirs = run.parents[3] / "hers"
    theirs.mkdir()
    (theirs / "run.json").write_text('"hers"')
    run.rename(run.with_name("away"))
    run.symlink_to(theirs)


def link_to_his(run: Path) -> None:
    run.rename(run.with_name("away"))
    run.symlink_to(run.with_name("away"))


def put_a_pipe(run: Path) -> None:
    run.rename(run.with_name("away"))
    run.mkdir()
    run.chmod(0o755)
    os.mkfifo(run / "run.json")


@pytest.mark.parametrize("exchange", [replace_run, replace_experiment, link_run, link_to_his, put_a_pipe])
@pytest.mark.parametrize("owner", [ADA, ROOT])
def test_nothing_that_was_exchanged_is_read_to_be_executed(project: Path, exchange: object, owner: User) -> None:
    assert callable(exchange)
    home = project / "home"
    owner.does(opened, home)
    run = home / "runs" / "default" / "uid"
    EVE.does(exchange, run)

    with pytest.raises(NotPrivateError):
        owner.does(text_of, run)
    home.chmod(0o700)  # too late
    with pytest.raises(NotPrivateError, match=f"belongs to user {EVE.uid}"):
        owner.does(text_of, run)


def test_what_others_may_write_is_refused_until_a_folder_above_is_closed(project: Path) -> None:
    home = project / "home"
    ADA.does(opened, home)
    run = home / "runs" / "default" / "uid"

    with pytest.raises(NotPrivateError, match=f"{home} may be written by others, who could act as you: chmod go-w"):
        ADA.does(text_of, run)
    ADA.does(home.chmod, 0o700)
    assert ADA.does(text_of, run) == "{}"


def test_runs_may_lie_elsewhere_by_a_link_of_ones_own(project: Path) -> None:
    home, disk = project / "home", project / "disk"
    ADA.does(opened, disk, 0o700)
    ADA.does(private.make_home, home)
    ADA.does((home / "runs").symlink_to, disk / "runs")
    EVE.does((project / "named").symlink_to, home)  # as an administrator might: what counts is where it leads
    run = project / "named" / "runs" / "default" / "uid"

    assert ADA.does(text_of, run) == "{}"
    (disk / "runs").chmod(0o770)
    with pytest.raises(NotPrivateError, match="may be written by others"):
        ADA.does(text_of, run)


def test_of_lent_files_the_owner_of_the_folder_is_trusted_and_nobody_else(project: Path) -> None:
    images = project / "images"
    EVE.does(images.mkdir, 0o755, umask=0o022)
    EVE.does((images / "a.sif").write_text, "", umask=0o022)

    ADA.does(private.check_lent, images / "a.sif")
    images.chmod(0o775)
    with pytest.raises(NotPrivateError, match="could exchange"):
        ADA.does(private.check_lent, images / "a.sif")
    images.chmod(0o1775)
    ADA.does(private.check_lent, images / "a.sif")
    os.chown(images / "a.sif", 65_503, GROUP)
    with pytest.raises(NotPrivateError, match="who is not the owner of its folder"):
        ADA.does(private.check_lent, images / "a.sif")


def test_a_draft_follows_no_link_that_waits_for_it(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")

    with pytest.raises(OSError, match="link"):
        private.write_file(tmp_path / "link", "x")
    assert not (tmp_path / "target").exists()


def test_a_home_of_ones_own_is_named_where_one_may_be_made(project: Path) -> None:
    home = project / "home"
    ADA.does(home.mkdir, 0o700)

    beside = EVE.does(private.why_shared, home) or ""
    home.chmod(0o777)
    inside = EVE.does(private.why_shared, home) or ""
    home.chmod(0o700)
    project.chmod(0o755)
    nowhere = EVE.does(private.why_shared, home) or ""

    eve = private.user_name(EVE.uid)
    assert f"choose one of your own, as {home}-{eve}; results" in beside
    assert f"choose one of your own, as {home}/{eve}; results" in inside
    assert "choose one of your own; results" in nowhere
