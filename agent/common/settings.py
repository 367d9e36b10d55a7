"""Settings, checked where they enter: every section of the file asks in this way, so that every mistake reads alike."""

from __future__ import annotations

import difflib
import math
import reprlib
from collections.abc import Iterable
from dataclasses import dataclass

from agent.common.duration import parse_ns
from agent.errors import USAGE, AgentError


@dataclass(frozen=True)
class Section:
    """name: of a section, empty at the top. Everything raises AgentError (exit code 2) that names the setting and says
    what it can be.
    """

    name: str = ""

    def wrong(self, key: str, value: object, why: str) -> AgentError:
        return AgentError(f"{self._full(key)} cannot be {_shown(value)}", why=why, exit_code=USAGE)

    def known(self, keys: Iterable[object], names: Iterable[str]) -> None:
        """All of ``keys`` are among ``names``."""
        names = list(names)
        for key in keys:
            if key not in names:
                near = difflib.get_close_matches(str(key), names, 1)
                hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(names)}"
                raise AgentError(
                    f"there is no setting {self._full(str(key)) if self.name else reprlib.repr(key)}",
                    why=hint,
                    exit_code=USAGE,
                )

    def one_of(self, key: str, value: object, allowed: Iterable[str]) -> str:
        if value not in (names := list(allowed)):
            raise self.wrong(key, value, f"it is one of {', '.join(names)}")
        return str(value)

    def number(self, key: str, value: object, least: float, most: float = math.inf) -> float:
        """A finite number, also as text."""
        try:
            number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not least <= number <= most or number == math.inf:
            raise self.wrong(
                key,
                value,
                (
                    f"it lies between {least:g} and {most:g}"
                    if most < math.inf
                    else f"it is a number of at least {least:g}"
                ),
            )
        return number

    def whole(self, key: str, value: object, least: int, most: int) -> int:
        """A whole number."""
        number = self.number(key, value, least, most)
        if not number.is_integer():
            raise self.wrong(key, value, "it is a whole number")
        return int(number)

    def seconds(self, key: str, value: object, least_s: float, most_s: float) -> float:
        """A duration; a number alone is seconds."""
        try:
            seconds = math.nan if isinstance(value, bool) else parse_ns(str(value), bare="s") / 1e9
        except ValueError:
            seconds = math.nan
        if not least_s <= seconds <= most_s:
            raise self.wrong(key, value, "it is a time such as 64s or 5m")
        return seconds

    def flag(self, key: str, value: object) -> bool:
        if not isinstance(value, bool):
            raise self.wrong(key, value, "it is true or false")
        return value

    def text(self, key: str, value: object, what: str) -> str:
        """what: for people, for example ``a URL``."""
        if not isinstance(value, str) or any("\ud800" <= letter <= "\udfff" for letter in value):  # halves of a letter
            raise self.wrong(key, value, f"it is {what}")
        return value

    def texts(self, key: str, value: object, what: str, most: int = 256) -> tuple[str, ...]:
        """A text, or a list of some."""
        items = [value] if isinstance(value, str) else value
        if (
            not isinstance(items, (list, tuple))
            or len(items) > most
            or not all(isinstance(item, str) and item for item in items)
        ):
            raise self.wrong(key, value, f"it is {what}")
        return tuple(items)

    def _full(self, key: str) -> str:
        return f"{self.name}.{key}" if self.name else key


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else reprlib.repr(value)
