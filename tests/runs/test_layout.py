from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from hpcml.runs.layout import RunDir, find_run_dirs, new_submission_id, new_uid, run_dir_of

NOW = datetime(2026, 11, 21, 8, 30, 15, tzinfo=UTC)


def test_ids_sort_by_time_and_do_not_collide() -> None:
    ids = [new_uid(NOW, index) for index in range(2000)]

    assert ids == sorted(ids)
    assert len({new_uid(NOW, 0) for _ in range(20)}) == 20  # of 28 million: of a thousand two may well be alike
    assert all(uid.startswith("20261121-083015-") for uid in ids)


def test_ids_of_two_submissions_of_the_same_second_sort_by_time() -> None:
    first = [new_uid(NOW, index) for index in range(1000)]
    second = [new_uid(NOW + timedelta(milliseconds=100), index) for index in range(1000)]
    late = new_uid(NOW + timedelta(milliseconds=999), 0)

    assert [*first, *second, late] == sorted([*first, *second, late])
    assert late.startswith("20261121-083015-")


def test_ids_sort_by_time_when_summer_ends_and_from_wherever_one_submits() -> None:
    summer = datetime(2026, 10, 25, 0, 59, tzinfo=UTC)
    moments = [
        summer.astimezone(ZoneInfo("Europe/Prague")),  # 02:59, and three minutes later 02:02
        (summer + timedelta(minutes=3)).astimezone(ZoneInfo("Europe/Prague")),
        (summer + timedelta(minutes=4)).astimezone(ZoneInfo("Pacific/Auckland")),
        (summer + timedelta(minutes=5)).astimezone(ZoneInfo("America/Denver")),
    ]

    ids, submissions = [new_uid(then, 0) for then in moments], [new_submission_id(then) for then in moments]

    assert (ids, submissions) == (sorted(ids), sorted(submissions))


def test_a_submission_of_any_size_keeps_its_order() -> None:
    ids = [new_uid(NOW + timedelta(milliseconds=500), index) for index in range(0, 100_000, 500)]

    assert ids == sorted(ids)
    assert ids[0].startswith("20261121-083015-")
    assert ids[-1].startswith("20261121-083018-")  # three times all places of a second further on


def test_only_directories_with_a_manifest_are_runs(tmp_path: Path) -> None:
    for name in ("e/a", "e/b", "f/c"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "e/b/run.json").touch()
    (tmp_path / "f/c/run.json").touch()

    assert list(find_run_dirs(tmp_path)) == [RunDir(tmp_path / "e/b"), RunDir(tmp_path / "f/c")]
    assert list(find_run_dirs(tmp_path / "e")) == list(find_run_dirs(tmp_path / "e/b")) == [RunDir(tmp_path / "e/b")]
    assert list(find_run_dirs(tmp_path.parent / "absent")) == []


def test_a_link_that_leads_nowhere_hides_no_run_beside_it(tmp_path: Path) -> None:
    (tmp_path / "e/a").mkdir(parents=True)
    (tmp_path / "e/a/run.json").touch()
    (tmp_path / "e/itself").symlink_to("itself")
    (tmp_path / "e/gone").symlink_to("nothing")

    assert list(find_run_dirs(tmp_path)) == [RunDir(tmp_path / "e/a")]


def test_every_file_of_a_run_lies_in_its_directory(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "x")
    files = [run_dir.manifest, run_dir.git_diff, run_dir.script, run_dir.stdout(1, 2), run_dir.stderr(1, 2)]

    assert len(set(files)) == len(files)
    assert all(file.is_relative_to(run_dir.path) for file in files)


def test_a_submission_is_told_from_its_runs_and_from_others() -> None:
    ids = {new_submission_id(NOW) for _ in range(1000)}

    assert len(ids) == 1000
    assert {len(submission) < len(new_uid(NOW, 0)) for submission in ids} == {True}
    assert all(submission.startswith("20261121-083015-") for submission in ids)


def test_the_manifest_of_a_retry_belongs_to_its_run(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "x")

    assert run_dir_of(run_dir.manifest) == run_dir_of(run_dir.retry_manifest(2)) == run_dir
