"""Prompts of a wanted length, no two of which begin alike: no cache has anything to reuse."""

from __future__ import annotations

import random

# Common words that are one token each, with the space before, in the usual vocabularies.
_TEXT = """
time year people way day man thing woman life child world school state family student
group country problem hand part place case week company system program question work
government number night point home water room mother area money story fact month lot
right study book eye job word business issue side kind head house service friend father
power hour game line end member law car city community name president team minute idea
body information back parent face others level office door health person art war history
party result change morning reason research girl guy moment air teacher force education
foot boy age policy music market sense nation plan college interest death experience
effect use class control field development role effort rate heart drug show leader light
voice wife police mind difference period building action season society tax director
position player record paper space ground form event matter center couple site project
activity star table need court oil half situation cost industry figure street image
phone data picture practice piece land product doctor wall patient worker news test
movie north love support technology step baby computer type attention film tree source
hair look window culture chance brother energy summer hospital
"""
WORDS = tuple(_TEXT.split())
_SERIAL_WORDS = 3


class Prompts:
    """A deterministic sequence: the same seed and round give each server the same prompts.

    The first words spell the prompt's serial number, the fastest digit first, so that
    neighbours differ in their first word.
    """

    def __init__(self, seed: int, round_: int, words_per_token: float = 1.0) -> None:
        self._random = random.Random(f"{seed} {round_}")
        self._words = self._random.sample(WORDS, len(WORDS))
        self._words_per_token = words_per_token
        self._serial = 0

    def text(self, tokens: int) -> str:
        """About so many tokens, and a beginning of its own."""
        opening = self._opening()
        n = max(round(tokens * self._words_per_token) - len(opening), 1)
        return " ".join((*opening, *self._random.choices(self._words, k=n)))

    def _opening(self) -> list[str]:
        rest, digits = self._serial, []
        for _ in range(_SERIAL_WORDS):
            rest, digit = divmod(rest, len(self._words))
            digits.append(self._words[digit])
        assert rest == 0, "more prompts than the opening can number"
        self._serial += 1
        return digits
