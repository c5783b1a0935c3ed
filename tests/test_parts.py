"""The parts of the tests and the page about them agree with what is there."""

from __future__ import annotations

import re
from fnmatch import filter as matching
from pathlib import Path

from tests.parts import NIGHTLY

TESTS = Path(__file__).parent
PAGE = (TESTS / "README.md").read_text(encoding="utf-8")


def test_the_page_lists_the_stories_and_no_others() -> None:
    stories = [
        found
        for path in TESTS.rglob("test_*.py")
        for found in re.findall(r"@pytest\.mark\.story\n(?:@.*\n|[ )].*\n)*def (\w+)", path.read_text(encoding="utf-8"))
    ]

    assert sorted(stories) == sorted(re.findall(r"\| `(test_\w+)` \|", PAGE))


def test_the_page_lists_the_parts_and_each_has_its_files() -> None:
    paths = [str(path.relative_to(TESTS)) for path in TESTS.rglob("*.py")]
    patterns = [each for files in NIGHTLY.values() for each in files]

    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == list(NIGHTLY)
    assert [each for each in patterns if not matching(paths, each)] == []
