"""A report that is open in a browser, and what it did besides being there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from playwright.sync_api import Page

_WALK = """async () => {
  for (const drawing of document.querySelectorAll(".drawing")) {
    drawing.scrollIntoView();
    while (!drawing.querySelector(".main-svg")) await new Promise((resolve) => setTimeout(resolve, 5));
  }
  scrollTo(0, 0);
}"""


@dataclass
class Opened:
    """A page, and what it did besides being there."""

    page: Page
    heard: list[str] = field(default_factory=list)  # the console, errors, dialogs
    asked_for: list[str] = field(default_factory=list)

    def walk(self) -> None:
        """Look at each chart, so that it is drawn."""
        self.page.evaluate(_WALK)

    def count(self, selector: str) -> int:
        return self.page.locator(selector).count()

    def column(self, caption: str, at: int) -> list[str]:
        rows = self.page.locator("table", has=self.page.locator("caption", has_text=caption)).first.locator("tbody tr")
        return [text.strip() for text in rows.locator(f":nth-child({at})").all_inner_texts()]


Open = Callable[..., Opened]
