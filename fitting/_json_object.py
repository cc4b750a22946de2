"""A parsed JSON object read field by field, so that a bad document names the field and the rule it breaks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from fitting.points import MAX_COUNT


class DocumentError(ValueError):
    """A document that can't be read or written: `path` (dotted, with list indices) and the rule it breaks."""

    def __init__(self, path: str, rule: str) -> None:
        """Keep the path and the rule."""
        super().__init__(f"{path}: {rule}")
        self.path = path
        self.rule = rule


class JsonObject:
    """One JSON object at `path`; every reader raises DocumentError."""

    def __init__(self, value: object, path: str) -> None:
        """Refuse anything but an object with string keys."""
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise DocumentError(path, "must be an object")
        self.path = path
        self._fields: dict[str, Any] = value
        self._read: set[str] = set()

    def names(self) -> list[str]:
        """Return the field names."""
        return list(self._fields)

    def optional(self, name: str) -> object:
        """Return a field's value, None where it is absent."""
        self._read.add(name)
        return self._fields.get(name)

    def value(self, name: str) -> object:
        """Return a required field's value."""
        if name not in self._fields:
            raise DocumentError(f"{self.path}.{name}", "is required")
        return self.optional(name)

    def text(self, name: str) -> str:
        """Return a string."""
        value = self.value(name)
        if not isinstance(value, str):
            raise DocumentError(f"{self.path}.{name}", "must be a string")
        return value

    def optional_text(self, name: str) -> str | None:
        """Return a string, or None for null or an absent field."""
        return None if self.optional(name) is None else self.text(name)

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """Return one of the given strings."""
        value = self.text(name)
        if value not in choices:
            raise DocumentError(f"{self.path}.{name}", f"must be one of {', '.join(choices)}")
        return value

    def flag(self, name: str) -> bool:
        """Return a boolean."""
        value = self.value(name)
        if not isinstance(value, bool):
            raise DocumentError(f"{self.path}.{name}", "must be true or false")
        return value

    def count(self, name: str, *, least: int = 0) -> int:
        """Return an integer from `least` to 2^63-1."""
        return _count(self.value(name), f"{self.path}.{name}", least)

    def counts(self, name: str) -> tuple[int, ...]:
        """Return a list of integers from 0 to 2^63-1."""
        return tuple(_count(item, f"{self.path}.{name}[{index}]", 0) for index, item in enumerate(self._items(name)))

    def number(self, name: str) -> float:
        """Return a finite number, zero or more."""
        value = self.value(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
            raise DocumentError(f"{self.path}.{name}", "must be a finite number, zero or more")
        return float(value)

    def optional_number(self, name: str) -> float | None:
        """Return a finite number, zero or more, or None for null or an absent field."""
        return None if self.optional(name) is None else self.number(name)

    def child(self, name: str) -> JsonObject:
        """Return an object."""
        return JsonObject(self.value(name), f"{self.path}.{name}")

    def children(self, name: str) -> list[JsonObject]:
        """Return a list of objects."""
        return [JsonObject(item, f"{self.path}.{name}[{index}]") for index, item in enumerate(self._items(name))]

    def close(self) -> None:
        """Refuse fields that nobody read: a misspelt one would pass for its default."""
        unknown = sorted(set(self._fields) - self._read)
        if unknown:
            raise DocumentError(f"{self.path}.{unknown[0]}", "is not a field of this record")

    def _items(self, name: str) -> list[object]:
        value = self.value(name)
        if not isinstance(value, list | tuple):
            raise DocumentError(f"{self.path}.{name}", "must be a list")
        return list(value)


def _count(value: object, path: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MAX_COUNT:
        raise DocumentError(path, f"must be an integer from {least} to 2^63-1")
    return value
