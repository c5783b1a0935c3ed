"""How the levels of a comparison are told apart in drawings: by colour, dash and marker, never by colour alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# M. Okabe, K. Ito, Color Universal Design (2008), without its black and its yellow, which vanish on one background
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_MARKERS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")  # 7: with 6 colours, 42 pairs
NEUTRAL = "#808080"  # of what belongs to no level; visible on white and on black


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelStyle:
    """How one level is drawn everywhere in a report, in plotly's words."""

    colour: str
    dash: str
    marker: str

    def faint(self, opacity: float) -> str:
        """Return the colour, letting through what is behind."""
        red, green, blue = (int(self.colour[at : at + 2], 16) for at in (1, 3, 5))
        return f"rgba({red},{green},{blue},{opacity:g})"


def level_styles(levels: Sequence[str]) -> Mapping[str, LevelStyle]:
    """Return a style for each level, in their order."""
    return {
        level: LevelStyle(
            colour=_COLOURS[at % len(_COLOURS)], dash=_DASHES[at % len(_DASHES)], marker=_MARKERS[at % len(_MARKERS)]
        )
        for at, level in enumerate(dict.fromkeys(levels))
    }
