"""What one setting of a recipe asks of another, as its recipe.toml says: rules that are data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcml.errors import ConfigError

_WAYS = ("one_of", "multiple_of", "at_least", "at_most")


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """Where all of `when` is so, `setting` must be as one of the ways says; a setting without a value is not judged."""

    setting: str  # as it is typed (precision, training.compile, model.options.NAME), or what planning finds out
    when: dict[str, Any] = field(default_factory=dict)  # setting -> its value, or a list of values
    one_of: list[Any] = field(default_factory=list)
    multiple_of: int | str | None = None  # a number, or the setting that is it
    at_least: float | None = None
    at_most: float | str | None = None  # a number, or the setting that is it
    plus: int = 0  # to the setting that `at_most` names
    because: str = ""

    def __post_init__(self) -> None:
        ways = [way for way in _WAYS if getattr(self, way) not in (None, [])]
        if len(ways) != 1:
            raise ConfigError(f"requires.setting={self.setting!r}: say one of {', '.join(_WAYS)}, not {len(ways)}")

    def __str__(self) -> str:
        where = " and ".join(f"{name}={_either(wanted)}" for name, wanted in self.when.items())
        return f"{self.setting} must be {self._demand()}{where and f' with {where}'}{self._reason()}"

    @property
    def settings(self) -> list[str]:
        """All settings that it names, `setting` first."""
        bounds = [bound for bound in (self.multiple_of, self.at_most) if isinstance(bound, str)]
        return [self.setting, *self.when, *bounds]

    def complaint(self, settings: Mapping[str, object]) -> str | None:
        """Return what is wrong with *settings*, or None; it names the settings, their values and why."""
        applies = all(settings.get(name) in _as_list(wanted) for name, wanted in self.when.items())
        if not applies or self._holds(settings):
            return None
        first, *others = (f"{name}={_typed(settings[name])}" for name in self.settings)
        where = f" with {', '.join(others)}" if others else ""
        return f"{first}{where} must be {self._demand()}{self._reason()}"

    def _holds(self, settings: Mapping[str, object]) -> bool:
        value = settings.get(self.setting)
        if self.one_of:
            return value is None or value in self.one_of
        if not isinstance(value, int | float):
            return True
        if self.multiple_of is not None:
            unit = _number(self.multiple_of, settings)
            return unit is None or unit < 1 or value % unit == 0
        if self.at_least is not None:
            return value >= self.at_least
        most = _number(self.at_most, settings)
        return most is None or value <= most + self.plus

    def _demand(self) -> str:
        if self.one_of:
            return _either(self.one_of)
        if self.multiple_of is not None:
            return f"a multiple of {self.multiple_of}"
        if self.at_least is not None:
            return f"at least {self.at_least:g}"
        most = self.at_most if isinstance(self.at_most, str) else f"{self.at_most:g}"
        return f"at most {most}" + (f" + {self.plus}" if self.plus else "")

    def _reason(self) -> str:
        return f": {self.because}" if self.because else ""


def _number(bound: float | str | None, settings: Mapping[str, object]) -> float | None:
    found = settings.get(bound) if isinstance(bound, str) else bound
    return found if isinstance(found, int | float) else None


def _as_list(wanted: object) -> list[object]:
    return wanted if isinstance(wanted, list) else [wanted]


def _either(wanted: object) -> str:
    return " or ".join(map(_typed, _as_list(wanted)))


def _typed(value: object) -> str:
    """Return *value* as one would type it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
