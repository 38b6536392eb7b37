"""Embeddings of real models in a real worker: an encoder made on the spot, and decoders."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
from made_models import write_bert, write_mamba
from worker_process import WorkerProcess, loaded_worker, request

from server.protocol import Cancel, ContextGrown, Embed, Embedded, Finished, Rejected, Step

# Cosine. Where a text is cut into batches elsewhere, llama.cpp's kernels round differently: 0.9993
# with SmolLM2's four bits, 1.0 where it is not.
SAME = 0.999
TEXTS = [
    "the sea is blue",
    "tax law",
    "the cat runs fast, the dog runs",
    "the sea is blue",
    "deep",
]
LONG = "the sea is blue and deep, the dog runs fast " * 5


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bert(tmp_path_factory.mktemp("bert") / "bert.gguf")


@pytest.fixture(scope="module")
def encoder(bert: Path) -> Iterator[WorkerProcess]:
    with loaded_worker(bert, n_ubatch=128) as (worker, _):
        yield worker


@pytest.fixture(scope="module")
def decoder(smollm2: Path) -> Iterator[WorkerProcess]:
    with loaded_worker(smollm2) as (worker, _):
        yield worker


@pytest.fixture(params=["encoder", "decoder"])
def worker(request: pytest.FixtureRequest) -> WorkerProcess:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, WorkerProcess)
    return found


def test_a_batch_gives_what_each_text_gives_alone(worker: WorkerProcess) -> None:
    (together,) = worker.embeddings(Embed("all", [*TEXTS, LONG]))
    alone = [worker.embeddings(Embed(text, [text]))[0][0] for text in [*TEXTS, LONG]]
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-6)
    assert np.einsum("ij,ij->i", together, np.stack(alone)).min() > SAME
    # And the texts are told apart, so that this is no comparison of one vector with itself.
    assert together[0] @ together[3] > 0.9999
    assert together[0] @ together[1] < 0.99


def test_requests_together_get_what_they_get_alone(worker: WorkerProcess) -> None:
    a, b = Embed("a", TEXTS), Embed("b", [LONG, *TEXTS[::-1]])
    for mixed, alone in zip(
        worker.embeddings(a, b), [worker.embeddings(each)[0] for each in (a, b)], strict=True
    ):
        assert np.einsum("ij,ij->i", mixed, alone).min() > SAME


def test_dimensions_are_the_first_ones_at_length_one(worker: WorkerProcess) -> None:
    (whole,), (cut,) = worker.embeddings(Embed("w", TEXTS[:1]), Embed("c", TEXTS[:1], False, 16))
    expected = whole[:16] / np.linalg.norm(whole[:16])
    assert cut.shape == (16,)
    assert cut @ expected > 0.9999


def test_similar_texts_are_nearer_than_others(decoder: WorkerProcess) -> None:
    (v,) = decoder.embeddings(
        Embed(
            "s",
            [
                "The cat sleeps on the sofa.",
                "A kitten is napping on the couch.",
                "Quarterly tax returns are due in April.",
            ],
        )
    )
    assert v[0] @ v[1] > v[0] @ v[2] + 0.1


def test_token_ids_are_taken_as_they_are(decoder: WorkerProcess) -> None:
    (text,), (tokens,) = decoder.embeddings(
        Embed("t", ["Once upon a time"]), Embed("i", [[6403, 1980, 253, 655]])
    )
    assert text @ tokens > 0.9999


def test_an_encoder_writes_no_text(encoder: WorkerProcess) -> None:
    assert encoder.rejected(request("g", "x")).message == (
        "the model makes embeddings and writes no text"
    )


@pytest.mark.parametrize(
    "pooling, same_as",
    [
        (gguf.PoolingType.MEAN, "mean"),
        (gguf.PoolingType.CLS, "cls"),
        (gguf.PoolingType.LAST, "last"),
        (None, "mean"),
        (gguf.PoolingType.NONE, "mean"),
    ],
)
def test_the_gguf_says_how_to_pool_and_the_option_overrules_it(
    tmp_path: Path, pooling: gguf.PoolingType | None, same_as: str
) -> None:
    path = write_bert(tmp_path / "bert.gguf", pooling=pooling)
    found = {}
    for option in ("model", "mean", "cls", "last"):
        with loaded_worker(path, pooling=option) as (worker, _):
            found[option] = worker.embeddings(Embed("e", TEXTS))[0]
    for option in ("mean", "cls", "last"):
        same = np.einsum("ij,ij->i", found["model"], found[option]).min() > 0.9999
        assert same == (option == same_as), option


def test_a_reranker_is_refused_unless_overruled(tmp_path: Path) -> None:
    path = write_bert(tmp_path / "bert.gguf", pooling=gguf.PoolingType.RANK)
    with loaded_worker(path) as (worker, _):
        assert "a reranker" in worker.rejected(Embed("e", TEXTS)).message
    with loaded_worker(path, pooling="cls") as (worker, _):
        assert len(worker.embeddings(Embed("e", TEXTS))[0]) == len(TEXTS)


def test_a_decoder_pools_by_the_last_token(smollm2: Path) -> None:
    found = {}
    for option in ("model", "last", "mean"):
        with loaded_worker(smollm2, pooling=option) as (worker, _):
            found[option] = worker.embeddings(Embed("e", TEXTS[:2]))[0]
    assert np.einsum("ij,ij->i", found["model"], found["last"]).min() > 0.9999
    assert np.einsum("ij,ij->i", found["model"], found["mean"]).max() < 0.99


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_a_text_longer_than_a_ubatch_gives_the_same_in_parts(smollm2: Path, pooling: str) -> None:
    found = []
    for n_ubatch in (16, 256):
        with loaded_worker(smollm2, pooling=pooling, n_ubatch=n_ubatch) as (worker, _):
            found.append(worker.embeddings(Embed("e", [LONG]))[0][0])
    assert found[0] @ found[1] > SAME


def test_the_longest_text_and_one_beyond(encoder: WorkerProcess) -> None:
    # [CLS] and [SEP] stand about it.
    assert encoder.answer(Embed("fits", ["a " * 126])).end.prompt_tokens == 128
    assert encoder.rejected(Embed("long", ["a " * 127])).message == (
        "input 0 has 129 tokens, and this model takes 128 tokens: shorten it"
    )
    cut, same = encoder.embeddings(
        Embed("cut", ["a " * 5000], truncate=True), Embed("same", ["a " * 126])
    )
    assert cut[0] @ same[0] > 0.9999


def test_a_ubatch_bounds_an_encoders_text(bert: Path) -> None:
    with loaded_worker(bert, n_ubatch=32) as (worker, ready):
        assert ready.n_ctx == 32
        assert worker.rejected(Embed("long", ["a " * 31])).message == (
            "input 0 has 33 tokens, and this model takes 32 tokens: shorten it, "
            "or load the model with a larger n_ubatch and n_ctx"
        )


def test_letters_that_become_several_are_tokenised(encoder: WorkerProcess) -> None:
    # Two bytes each, and three code points once normalised.
    assert encoder.answer(Embed("u", ["\u0390 " * 20, "\u0390" * 40])).end.reason == "stop"


def test_the_second_context_is_told_of_when_it_is_opened(smollm2: Path) -> None:
    with loaded_worker(smollm2) as (worker, ready):
        worker.embeddings(Embed("e", ["x"]))
        worker.embeddings(Embed("f", ["x"]))
        (grown,) = [each for each in worker.others if isinstance(each, ContextGrown)]
        assert grown.kv_bytes == 2 * ready.kv_bytes > 0


def test_a_recurrent_model_embeds_too(tmp_path: Path, smollm2: Path) -> None:
    with loaded_worker(write_mamba(tmp_path / "mamba.gguf", smollm2)) as (worker, _):
        (together,) = worker.embeddings(Embed("all", [*TEXTS, LONG]))
        for row, text in zip(together, [*TEXTS, LONG], strict=True):
            assert row @ worker.embeddings(Embed(text, [text]))[0][0] > SAME


def test_a_stream_flows_between_the_batches_of_a_large_job(smollm2: Path) -> None:
    text = "the sea is blue and deep and the dog runs fast over the lazy cat"
    with loaded_worker(smollm2, prefill_slice=16, n_ubatch=64) as (worker, _):
        worker.accepted(request("stream", "Once upon", max_tokens=24, ignore_eos=True))
        worker.send(Embed("job", [text] * 40))
        kinds: list[str] = []
        vectors: list[int] = []
        while "stream ends" not in kinds:
            match worker.receive():
                case Step():
                    kinds.append("step")
                case Embedded() as told:
                    kinds.append("embedded")
                    vectors.append(len(told.vectors))
                case Finished(id="stream"):
                    kinds.append("stream ends")
        # A text has 14 tokens: 16 hold no two of them, where 64 would hold four.
        assert max(vectors) <= 2
        assert kinds.count("embedded") >= 10
        assert all(pair != ("embedded", "embedded") for pair in itertools.pairwise(kinds))
        worker.collect(["job"])


def test_cancelled_jobs_leave_nothing_behind(decoder: WorkerProcess) -> None:
    (before,) = decoder.embeddings(Embed("before", TEXTS))
    for n in range(8):
        decoder.send(Embed(f"c{n}", [LONG] * 200), Cancel(f"c{n}"))
        assert decoder.collect([f"c{n}"])[0].end.reason == "cancelled"
    # As many long texts as the context has cells for, so that any left would fail this.
    worker_full = decoder.answer(Embed("full", [list(range(100, 356))] * 3))
    assert worker_full.end.reason == "stop"
    (after,) = decoder.embeddings(Embed("after", TEXTS))
    np.testing.assert_array_equal(before, after)


def test_a_refusal_reads_like_that_of_a_prompt(decoder: WorkerProcess) -> None:
    rejected = decoder.rejected(Embed("long", [TEXTS[0], LONG * 8]))
    assert isinstance(rejected, Rejected)
    assert rejected.param == "input"
    assert "and this model takes 256 tokens" in rejected.message
    assert rejected.message.endswith("load the model with a larger n_ctx")
