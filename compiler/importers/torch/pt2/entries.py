"""Reading the JSON of a `.pt2` with checks: every entry knows its place in the file, and says it when it is damaged."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .....ir.errors import ModelError, Source

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,999}")
_PATH = re.compile(r"[A-Za-z0-9_]{1,999}(\.[A-Za-z0-9_]{1,999})*")
# Torch writes what JSON has no number for as these words.
_WORDS = {"Infinity": float("inf"), "-Infinity": float("-inf"), "NaN": float("nan")}


@dataclass(frozen=True)
class Entry:
    """One value of the JSON and where it stands."""

    value: Any
    place: str
    source: Source

    def fail(self, message: str) -> ModelError:
        return ModelError(f"{self.place}: {message}", source=self.source, hint="save the program again with torch.export.save")

    def _expected(self, what: str) -> ModelError:
        return self.fail(f"got {str(self.value)[:60]!r}, expected {what}")

    def at(self, key: str) -> Entry:
        """The entry of a key that must be there."""
        if not isinstance(self.value, dict) or key not in self.value:
            raise self.fail(f"lacks {key!r}")
        return Entry(self.value[key], f"{self.place}.{key}", self.source)

    def maybe(self, key: str) -> Entry | None:
        """The entry of a key, or None where it is missing or null."""
        found = self.value.get(key) if isinstance(self.value, dict) else None
        return None if found is None else Entry(found, f"{self.place}.{key}", self.source)

    def parts(self) -> Iterator[Entry]:
        """The entries of a list."""
        if not isinstance(self.value, list):
            raise self._expected("a list")
        return (Entry(part, f"{self.place}[{number}]", self.source) for number, part in enumerate(self.value))

    def case(self) -> tuple[str, Entry]:
        """The one case that a union holds: its name and its entry."""
        if not isinstance(self.value, dict) or len(self.value) != 1:
            raise self._expected("one case of a union")
        ((name, _),) = self.value.items()
        return name, self.at(name)

    def keys(self) -> list[str]:
        """The keys of an object."""
        if not isinstance(self.value, dict):
            raise self._expected("an object")
        return list(self.value)

    def text(self) -> str:
        if not isinstance(self.value, str):
            raise self._expected("text")
        return self.value

    def identifier(self) -> str:
        """A name of the graph: torch prints graphs as Python, so it must be a plain one."""
        if _IDENTIFIER.fullmatch(self.text()) is None:
            raise self._expected("a name of letters, digits and underscores")
        return self.text()

    def path(self) -> str:
        """A name of a parameter: plain names with dots between."""
        if _PATH.fullmatch(self.text()) is None:
            raise self._expected("names of letters, digits and underscores with dots between")
        return self.text()

    def integer(self) -> int:
        if not isinstance(self.value, int) or isinstance(self.value, bool) or abs(self.value) >= 1 << 64:
            raise self._expected("an integer")
        return self.value

    def number(self) -> float:
        if isinstance(self.value, str) and self.value in _WORDS:
            return _WORDS[self.value]
        if not isinstance(self.value, (int, float)) or isinstance(self.value, bool):
            raise self._expected("a number")
        return float(self.value)

    def boolean(self) -> bool:
        if not isinstance(self.value, bool):
            raise self._expected("true or false")
        return self.value
