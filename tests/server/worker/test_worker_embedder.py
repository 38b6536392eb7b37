"""Which texts a batch takes, and how requests end: the embedder over a reader that counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from residency.libc import PAGE_BYTES
from residency.modes import Mode
from residency.paging import Paging
from residency.policy import Policy
from server.protocol import Embed, Embedded, Finished, Rejected, ToDaemon
from server.worker.embedding import Embedder
from server.worker.pinning import Pinning
from server.worker.pooling import How, Rows
from server.worker.refusals import ContextRefused
from server.worker.request import Meters
from server.worker.slots import Tokens
from server.worker.texts import Limit
from server.worker.weights import weight_map


class Words:
    """A token for each letter, which is its code; with an end if wanted."""

    n_tokens = 128
    longest_token = 1

    def __init__(self, adds_end: bool) -> None:
        self.adds_end = adds_end

    def tokenize(self, text: str) -> Tokens:
        return np.array([ord(letter) for letter in text] + [0] * self.adds_end, dtype=np.int32)


@dataclass
class CountingReader:
    """Gives each token a vector of its place, its code and 1, and keeps what it was asked."""

    step_tokens: int = 8
    n_sequences: int = 4
    n_cells: int | None = 100
    reads_whole: bool = False
    adds_end: bool = False
    n_limit: int = 20
    pooling: How = "last"
    n_embd: int = 3
    kv_bytes: int = 7
    failure: int = 0
    batches: list[list[tuple[int, int, str]]] = field(default_factory=list)
    held: dict[int, int] = field(default_factory=dict)
    """Tokens in the cells, by sequence."""

    def __post_init__(self) -> None:
        self.tokenizer = Words(self.adds_end)
        self.limit = Limit(self.n_limit, "wish")

    def read(self, runs: Sequence[tuple[int, int, Tokens]]) -> Rows | int:
        if self.failure:
            return self.failure
        self.batches.append([(s, at, "".join(map(chr, tokens))) for s, at, tokens in runs])
        rows = []
        for seq, position, tokens in runs:
            assert self.held.get(seq, 0) == position
            self.held[seq] = position + len(tokens)
            rows += [[position + i, code, 1] for i, code in enumerate(tokens)]
        assert self.n_cells is None or sum(self.held.values()) <= self.n_cells
        return np.array(rows, dtype=np.float32)

    def forget(self, seq: int) -> None:
        self.held.pop(seq, None)

    @property
    def texts(self) -> list[list[str]]:
        return [[text for _, _, text in batch] for batch in self.batches]


def unpinned(mode: Mode) -> Pinning:
    """Of no weights."""
    return Pinning(weight_map([], PAGE_BYTES), Policy(mode), search=lambda _: iter(()))


class Bench:
    """An embedder whose messages are kept."""

    def __init__(self, reader: CountingReader, armed: bool = False) -> None:
        self.reader = reader
        self.sent: list[ToDaemon] = []
        self.pin = unpinned(Mode.LAZY_THEN_PIN_RESIDENT if armed else Mode.LAZY)
        meters = Meters(lambda: 0.0, lambda: Paging(0, 0))
        self.embedder = Embedder(lambda: reader, self.sent.append, self.pin, meters)

    def ask(self, id: str, *inputs: str | list[int], **more: object) -> None:
        self.embedder.on_embed(Embed(id, list(inputs), **more))  # type: ignore[arg-type]

    def run(self, most: int | None = None) -> None:
        while not self.embedder.idle:
            self.embedder.step(most)

    def rows(self, id: str) -> list[list[float]]:
        """What of each input's last token came back: its place over 1, its code over 1."""
        vectors = [
            np.frombuffer(vector, dtype="<f4")
            for message in self.sent
            if isinstance(message, Embedded) and message.id == id
            for vector in message.vectors
        ]
        return [[round(float(v[0] / v[2])), round(float(v[1] / v[2]))] for v in vectors]

    def ends(self) -> dict[str, str]:
        return {m.id: m.reason for m in self.sent if isinstance(m, Finished)}

    def refusals(self) -> list[Rejected]:
        return [message for message in self.sent if isinstance(message, Rejected)]


def last(*texts: str) -> list[list[float]]:
    return [[len(text) - 1, ord(text[-1])] for text in texts]


def test_texts_share_a_batch_and_come_back_in_order() -> None:
    bench = Bench(CountingReader())
    bench.ask("a", "abc", "de", "fgh", "ijkl")
    bench.run()
    assert bench.reader.texts == [["abc", "de", "fgh"], ["ijkl"]]
    assert bench.rows("a") == last("abc", "de", "fgh", "ijkl")
    (end,) = [message for message in bench.sent if isinstance(message, Finished)]
    assert (end.reason, end.prompt_tokens, end.completion_tokens) == ("stop", 12, 0)
    assert bench.reader.held == {}


def test_a_text_longer_than_a_batch_is_read_in_parts() -> None:
    bench = Bench(CountingReader())
    bench.ask("a", "abcdef", "ghijklmnop", "qr")
    bench.run(most=4)
    assert bench.reader.texts == [["abcd"], ["ef", "gh"], ["ijkl"], ["mnop"], ["qr"]]
    assert bench.rows("a") == last("abcdef", "ghijklmnop", "qr")


def test_the_mean_of_a_text_in_parts_is_that_of_all_its_tokens() -> None:
    bench = Bench(CountingReader(pooling="mean"))
    bench.ask("a", "bdfhj")
    bench.run(most=2)
    assert bench.rows("a") == [[2, ord("f")]]


def test_a_reader_of_whole_texts_gets_no_parts() -> None:
    bench = Bench(CountingReader(reads_whole=True, n_cells=None))
    bench.ask("a", "abcdef", "ghi", "j", "klmnopqrstuv", "w")
    bench.run(most=4)
    assert bench.reader.texts == [["abcdef"], ["ghi", "j"], ["klmnopqrstuv"], ["w"]]
    assert bench.rows("a") == last("abcdef", "ghi", "j", "klmnopqrstuv", "w")


def test_requests_take_turns_text_by_text() -> None:
    bench = Bench(CountingReader(step_tokens=4))
    bench.ask("a", *["aa"] * 6)
    bench.ask("b", "bb", "bb")
    bench.run()
    assert bench.reader.texts == [["aa", "bb"], ["aa", "bb"], ["aa", "aa"], ["aa", "aa"]]
    assert list(bench.ends()) == ["b", "a"]


def test_no_more_texts_than_sequences_and_cells() -> None:
    bench = Bench(CountingReader(step_tokens=50, n_sequences=3, n_cells=10))
    bench.ask("a", "a", "b", "c", "d", "eeeee", "ffffff")
    bench.run()
    assert bench.reader.texts == [["a", "b", "c"], ["d", "eeeee"], ["ffffff"]]


def test_a_text_that_is_too_long_costs_its_request_alone() -> None:
    bench = Bench(CountingReader(step_tokens=4))
    bench.ask("a", "aaa", "x" * 21, "aaa")
    bench.ask("b", "bb", "bb")
    bench.run()
    (refusal,) = bench.refusals()
    assert (refusal.id, refusal.param) == ("a", "input")
    assert (
        refusal.message
        == "input 1 has 21 tokens, and this model takes 20 tokens: shorten it, or wish"
    )
    assert bench.ends() == {"b": "stop"}
    assert bench.rows("b") == last("bb", "bb")
    assert bench.reader.held == {}


@pytest.mark.parametrize("length", [21, 22, 500])
def test_truncation_keeps_the_beginning_and_the_end_token(length: int) -> None:
    plain, ending = (Bench(CountingReader(step_tokens=50, adds_end=end)) for end in (False, True))
    for bench in (plain, ending):
        bench.ask("a", "x" * length, truncate=True)
        bench.run()
    assert plain.reader.texts == [["x" * 20]]
    assert ending.reader.texts == [["x" * 19 + "\0"]]


def test_token_ids_are_cut_and_checked() -> None:
    bench = Bench(CountingReader(step_tokens=50))
    bench.ask("cut", list(range(30)), truncate=True)
    bench.ask("long", list(range(30)))
    bench.ask("unknown", [1], [3, 128])
    bench.run()
    assert bench.reader.batches[0][0][2] == "".join(map(chr, range(20)))
    assert [(each.id, each.message) for each in bench.refusals()] == [
        ("long", "input 0 has 30 tokens, and this model takes 20 tokens: shorten it, or wish"),
        ("unknown", "input 1 names token 128; this model has 0 to 127"),
    ]


@pytest.mark.parametrize("dimensions", [0, 4])
def test_dimensions_that_the_model_does_not_have(dimensions: int) -> None:
    bench = Bench(CountingReader())
    bench.ask("a", "aa", dimensions=dimensions)
    assert [(r.param, r.message) for r in bench.refusals()] == [
        ("dimensions", f"dimensions is {dimensions}; this model's vectors have 3")
    ]
    assert bench.embedder.idle


def test_a_cancel_half_way_leaves_nothing_and_nobody_else_notices() -> None:
    bench = Bench(CountingReader(step_tokens=4))
    bench.ask("a", "aaaaaaaaaa", "aa")
    bench.ask("b", "bb")
    bench.embedder.step(None)
    assert bench.reader.held
    bench.embedder.on_cancel("a")
    assert bench.reader.held == {}
    bench.embedder.on_cancel("a")
    bench.run()
    assert bench.ends() == {"a": "cancelled", "b": "stop"}
    assert bench.rows("b") == last("bb")


def test_a_failed_read_ends_those_of_its_batch() -> None:
    bench = Bench(CountingReader(step_tokens=2, failure=-3))
    bench.ask("a", "aa")
    bench.ask("b", "bb")
    bench.embedder.step(None)
    assert bench.ends() == {"a": "error"}
    bench.reader.failure = 0
    bench.run()
    assert bench.ends() == {"a": "error", "b": "stop"}


def test_a_step_that_ends_no_text_is_a_sign_of_life() -> None:
    bench = Bench(CountingReader(step_tokens=2))
    bench.ask("a", "aaaaa")
    bench.embedder.step(None)
    assert bench.sent[-1] == Embedded("a", [])


def test_a_context_that_does_not_open_fails_the_request_and_is_tried_again() -> None:
    reader, sent = CountingReader(), list[ToDaemon]()
    faults = [ContextRefused("no memory")]

    def open_reader() -> CountingReader:
        if faults:
            raise faults.pop()
        return reader

    pin = unpinned(Mode.LAZY)
    embedder = Embedder(open_reader, sent.append, pin, Meters(lambda: 0.0, lambda: Paging(0, 0)))
    embedder.on_embed(Embed("a", ["aa"]))
    (end,) = sent
    assert isinstance(end, Finished)
    assert (end.reason, end.error) == ("error", "no memory")
    embedder.on_embed(Embed("b", ["bb"]))
    embedder.step(None)
    assert any(isinstance(message, Finished) and message.id == "b" for message in sent)


def test_a_served_request_arms_the_pin_and_no_other_does() -> None:
    bench = Bench(CountingReader(), armed=True)
    bench.ask("a", "aa")
    bench.embedder.on_cancel("a")
    assert not bench.pin.busy
    bench.ask("b", "bb")
    bench.run()
    assert bench.pin.busy
