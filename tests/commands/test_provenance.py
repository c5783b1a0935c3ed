"""What is recorded of the software that submits."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import pytest

from hpcml.commands.submit.provenance import describe


def packages() -> dict[str, str]:
    return describe(["hpcml", "run"], [], datetime.now(UTC)).packages


def test_the_packages_are_those_that_importlib_finds_in_the_order_of_their_names() -> None:
    installed = {each.name: each.version for each in metadata.distributions() if each.name}

    assert list(packages().items()) == sorted(installed.items(), key=lambda item: item[0].lower())


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Metadata-Version: 2.1\nname: Lower-Case\nVERSION:  1.0\n", {"Lower-Case": "1.0"}),
        ("Name: first\nVersion: 1\n\nName: second\nVersion: 2\n", {"first": "1"}),  # what follows is a description
        ("Name: once\nVersion: 1\nName: twice\n", {"once": "1"}),
        ("Metadata-Version: 2.1\nVersion: 1\n", {}),
        ("", {}),
    ],
)
def test_of_a_package_the_fields_in_front_of_its_description_count(
    text: str, found: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "some-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(text)
    before = packages()
    monkeypatch.syspath_prepend(str(tmp_path))

    assert {name: version for name, version in packages().items() if before.get(name) != version} == found
