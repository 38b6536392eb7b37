"""Model names: `part/part:tag`, which by their form alone cannot leave the store's tree."""

from __future__ import annotations

import re
from dataclasses import dataclass

from manifests.errors import InvalidName

DEFAULT_TAG = "latest"

# NAME_MAX of Linux file systems, in bytes; a tag's file carries `.json` too.
_MAX_PART = 255
_MAX_TAG = _MAX_PART - len(".json")
# With the store's own path in front this stays well under PATH_MAX (4,096).
_MAX_NAME = 1024

_PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


@dataclass(frozen=True, order=True)
class ModelName:
    """A valid name. Raises InvalidName when its parts are not; case counts."""

    name: str
    tag: str = DEFAULT_TAG

    def __post_init__(self) -> None:
        if len(self.name) > _MAX_NAME:
            raise InvalidName(self.name, f"{len(self.name):,} characters, at most {_MAX_NAME:,}")
        for part in self.name.split("/"):
            _check(self, part, "a part", _MAX_PART)
            # `a/b.json` would be a folder where the manifest of `a:b` is a file.
            if part.endswith(".json"):
                raise InvalidName(str(self), f"a part may not end in .json, as {part!r} does")
        _check(self, self.tag, "the tag", _MAX_TAG)

    def __str__(self) -> str:
        return f"{self.name}:{self.tag}"

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.name.split("/"))


def parse_name(text: str) -> ModelName:
    """The name in `name` or `name:tag`. Raises InvalidName."""
    name, colon, tag = text.partition(":")
    return ModelName(name, tag if colon else DEFAULT_TAG)


def _check(name: ModelName, part: str, what: str, limit: int) -> None:
    if not part:
        raise InvalidName(str(name), f"{what} is empty")
    if part.startswith("."):
        raise InvalidName(str(name), f"{what} starts with a dot: {part[:50]!r}")
    if not _PART.fullmatch(part):
        raise InvalidName(
            str(name), f"{what} has characters other than A-Z a-z 0-9 . _ -: {part[:50]!r}"
        )
    if len(part) > limit:
        raise InvalidName(str(name), f"{what} has {len(part):,} characters, at most {limit}")
