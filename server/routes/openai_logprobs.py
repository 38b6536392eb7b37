"""Likelihoods of tokens, in the shapes of OpenAI's chat completions and completions."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

import msgspec

from server.protocol import Likelihood, TokenLogprobs


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class ContentLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    content: list[ContentLogprob]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    """None where no others were asked for."""
    text_offset: list[int]
    """The character of the answer that the token begins at."""


Logprobs = ChatLogprobs | CompletionLogprobs


def chat_logprobs(tokens: Sequence[TokenLogprobs]) -> ChatLogprobs:
    return ChatLogprobs(
        [
            ContentLogprob(
                *_named(each.drawn), top_logprobs=[TopLogprob(*_named(one)) for one in each.top]
            )
            for each in tokens
        ]
    )


class CompletionShape:
    """One answer's, which may come in pieces."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def add(self, tokens: Sequence[TokenLogprobs]) -> CompletionLogprobs:
        """Those of the next piece."""
        return CompletionLogprobs(
            [_key(each.drawn.token) for each in tokens],
            [each.drawn.logprob for each in tokens],
            [{_key(one.token): one.logprob for one in each.top} for each in tokens]
            if any(each.top for each in tokens)
            else None,
            [self._begin(each.drawn.token) for each in tokens],
        )

    def _begin(self, token: bytes) -> int:
        begin = self._offset
        self._offset += len(self._decoder.decode(token))
        return begin


def _named(one: Likelihood) -> tuple[str, float, list[int]]:
    return one.token.decode(errors="replace"), one.logprob, list(one.token)


def _key(token: bytes) -> str:
    """Parts of characters apart, as OpenAI writes them: this shape has no bytes to tell them by."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)
