"""What a file says of a language model, each field read by its type and range: one error names the file, the field, what it is, what was
expected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...ir.errors import ModelError

LARGEST = 1 << 24
"""No size of a model is larger, nor any token's number: what says so is damaged."""
LEAST, MOST = 1.2e-38, 3.4e38
"""No number of a model is smaller or larger: f32 holds it."""


@dataclass(frozen=True)
class Said:
    """Fields by name. One that is not there, or null, has its default, and without one is missing; a word that is null is none."""

    data: Mapping[str, Any]
    file: str

    def bad(self, name: str, value: Any, expected: str) -> ModelError:
        return ModelError(f"{self.file}: {name} is {value!r:.200}, expected {expected}")

    def has(self, name: str) -> bool:
        """Whether the field says anything."""
        return self.data.get(name) is not None

    def integer(self, name: str, default: int | None = None, least: int = 1) -> int:
        value = self.data[name] if self.has(name) else default
        if value is None:
            raise ModelError(f"{self.file}: {name} is missing")
        if type(value) is not int or not least <= value <= LARGEST:
            raise self.bad(name, value, f"a whole number from {least} to {LARGEST}")
        return value

    def real(self, name: str, default: float | None = None) -> float:
        value = self.data[name] if self.has(name) else default
        if value is None:
            raise ModelError(f"{self.file}: {name} is missing")
        if type(value) not in (int, float) or not LEAST <= value <= MOST:
            raise self.bad(name, value, f"a number above 0, which f32 holds: {LEAST} to {MOST}")
        return float(value)

    def word(self, name: str, default: str) -> str:
        value = self.data.get(name, default)
        if not isinstance(value, str):
            raise self.bad(name, value, "a word")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.data[name] if self.has(name) else default
        if type(value) is not bool:
            raise self.bad(name, value, "true or false")
        return value

    def inner(self, name: str) -> Mapping[str, Any]:
        """The fields of an object; none of one that is not there."""
        value = self.data[name] if self.has(name) else {}
        if not isinstance(value, Mapping):
            raise self.bad(name, value, "an object")
        return value

    def token(self, name: str) -> int | None:
        """The number of a token, of the vocabulary or behind it."""
        return self.integer(name, least=0) if self.has(name) else None

    def tokens(self, name: str) -> tuple[int, ...]:
        """The numbers of tokens: one, or several in a list."""
        value = self.data.get(name)
        held = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(each) is int and 0 <= each <= LARGEST for each in held):
            raise self.bad(name, value, f"a token, or several: whole numbers from 0 to {LARGEST}")
        return tuple(held)

    def special(self, name: str) -> str:
        """The text of a special token, which may be an object that holds it; empty where there is none."""
        value = self.data.get(name)
        text = value.get("content") if isinstance(value, Mapping) else "" if value is None else value
        if not isinstance(text, str):
            raise self.bad(name, value, "a text, or an object with its content")
        return text

    def divisors(self, name: str, count: int) -> tuple[float, ...]:
        """So many numbers above 0."""
        value = self.data.get(name)
        if (
            not isinstance(value, list)
            or len(value) != count
            or not all(type(each) in (int, float) and LEAST <= each < 1e30 for each in value)
        ):
            raise self.bad(name, value, f"{count} numbers above 0")
        return tuple(float(each) for each in value)
