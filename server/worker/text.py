"""From token bytes to the text a client may see: whole characters, nothing of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextStream:
    """The text of one generation, piece by piece.

    Held back are the first bytes of a character whose rest has not come, and text that may
    turn out to begin a stop string. What comes out does not depend on how the bytes were cut.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.stopped = False
        """A stop string has come. It, and all after it, is never given out."""

    def push(self, data: bytes) -> str:
        """The text that `data` completes, perhaps none."""
        text = self._held + self._decoder.decode(data)
        self._held = ""
        if not self._stops or self.stopped:
            return "" if self.stopped else text
        end = first_stop(text, self._stops)
        if end is not None:
            self.stopped = True
            return text[:end]
        keep = len(text) - possible_stop(text, self._stops)
        self._held = text[keep:]
        return text[:keep]

    def flush(self) -> str:
        """What was held for a stop string that did not come. A broken last character is lost."""
        held, self._held = self._held, ""
        return held


def first_stop(text: str, stops: Sequence[str]) -> int | None:
    """Where the stop string begins that is complete first; of two that end together the longer."""
    found = [(at + len(stop), at) for stop in stops if (at := text.find(stop)) >= 0]
    return min(found)[1] if found else None


def possible_stop(text: str, stops: Sequence[str]) -> int:
    """Length of the longest end of `text` that a stop string begins with."""
    longest = min(len(text), max(map(len, stops)) - 1)
    for length in range(longest, 0, -1):
        tail = text[-length:]
        if any(stop.startswith(tail) for stop in stops):
            return length
    return 0
