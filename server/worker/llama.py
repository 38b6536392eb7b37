"""llama.cpp, typed: this module and gguf_header alone import llama_cpp.

Every resource is a context manager over a native pointer; whoever opens them
keeps them in an ExitStack, so that a context goes before its model.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import llama_cpp.llama_cpp as c
import numpy as np
import numpy.typing as npt

from residency.libc import PAGE_BYTES
from residency.preflight import Need
from residency.ranges import Range
from server.protocol import CacheType, FlashAttention
from server.worker.gguf_header import vocabulary_overrides
from server.worker.native_log import NativeLog
from server.worker.refusals import BUILD_HINT
from server.worker.slots import Tokens
from server.worker.weights import Weight, weight_map

# llama.cpp draws a seed of its own when given this one.
RANDOM_SEED = int(c.LLAMA_DEFAULT_SEED)
MAX_SEQUENCES = int(c.llama_max_parallel_sequences())
_CACHE_TYPES: dict[CacheType, int] = {
    "f16": c.GGML_TYPE_F16,
    "q8_0": c.GGML_TYPE_Q8_0,
    "q4_0": c.GGML_TYPE_Q4_0,
}
# What each patch adds, so that a build without one of them is told.
_FROM_PATCHES = (
    "llama_model_params_size",
    "llama_model_n_weights",
    "llama_sampler_grammar_error",
    "llama_memory_bytes",
    "llama_vocab_eog_tokens",
)
_TOKEN_DATA = np.dtype(c.llama_token_data)
_TOKEN_DATA_POINTER = ctypes.POINTER(c.llama_token_data)
# Of the likeliest tokens, those that Mirostat 1 estimates its exponent from; its paper's number.
_MIROSTAT_TOKENS = 100
_FLASH_ATTENTION: dict[FlashAttention, int] = {
    "auto": c.LLAMA_FLASH_ATTN_TYPE_AUTO,
    "on": c.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    "off": c.LLAMA_FLASH_ATTN_TYPE_DISABLED,
}


_SET_EXPERT_CHOSEN = b"ggml_backend_cpu_set_expert_chosen"
_GGML = {
    "ggml_backend_reg_by_name": (ctypes.c_void_p, ctypes.c_char_p),
    "ggml_backend_reg_get_proc_address": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p),
}
for _name, (_result, *_arguments) in _GGML.items():
    _function = getattr(c._lib, _name)
    _function.restype, _function.argtypes = _result, _arguments

READER_LIBRARY = Path(c._base_path) / f"libcorral_reader{Path(c._lib._name).suffix}"


class LibraryMismatch(Exception):
    """llama_cpp is not the build that corral needs."""


class NativeError(Exception):
    """llama.cpp refused; the message carries its own last error lines."""


def check_library() -> None:
    """Raises LibraryMismatch unless llama_cpp is the patched build and its binding fits it."""
    if not all(hasattr(c, name) for name in _FROM_PATCHES):
        raise LibraryMismatch(f"llama_cpp is not corral's patched build: {BUILD_HINT}")
    size = c.llama_model_params_size()
    if size != ctypes.sizeof(c.llama_model_params):
        raise LibraryMismatch(
            f"llama_model_params has {size} bytes in the library and "
            f"{ctypes.sizeof(c.llama_model_params)} in its Python binding: {BUILD_HINT}"
        )
    if not READER_LIBRARY.is_file():
        raise LibraryMismatch(f"{READER_LIBRARY.name} is not beside llama.cpp: {BUILD_HINT}")


@contextmanager
def open_library(log: NativeLog) -> Iterator[None]:
    """llama.cpp, with its log going to `log`. Once per process."""
    with _log_to(log):
        c.llama_backend_init()
        # A build for any CPU has a library per kind of CPU beside libllama, loaded on demand.
        if c._lib.ggml_backend_reg_count() == 0:
            c._lib.ggml_backend_load_all_from_path(bytes(c._base_path))
        try:
            yield
        finally:
            c.llama_backend_free()


def read_chosen_experts(*, whole: bool) -> None:
    """From now on the experts that a step's tokens are given to are read whole before they are
    computed with, as native/reader/chosen.h says; or they come as they are touched. Not while
    anything computes. Raises LibraryMismatch."""
    cpu = c._lib.ggml_backend_reg_by_name(b"CPU")
    address = cpu and c._lib.ggml_backend_reg_get_proc_address(cpu, _SET_EXPERT_CHOSEN)
    if not address:
        raise LibraryMismatch(f"llama.cpp has no {_SET_EXPERT_CHOSEN.decode()}: {BUILD_HINT}")
    chosen = ctypes.CDLL(str(READER_LIBRARY)).corral_read_chosen
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(
        ctypes.cast(chosen, ctypes.c_void_p) if whole else None
    )


@contextmanager
def _log_to(log: NativeLog) -> Iterator[None]:
    """Afterwards llama.cpp logs to where it did before."""
    before, data = c.llama_log_callback(), ctypes.c_void_p()
    c.llama_log_get(ctypes.byref(before), ctypes.byref(data))
    callback = c.llama_log_callback(lambda level, text, _: log.on_line(level, text))
    c.llama_log_set(callback, ctypes.c_void_p(0))
    try:
        yield
    finally:
        c.llama_log_set(before, data)


@dataclass(frozen=True)
class ModelOptions:
    """What a load is asked for, beyond the files."""

    use_mmap: bool
    use_mlock: bool
    prefetch: bool
    n_gpu_layers: int
    layout_only: bool = False
    """Only lay out what would be loaded: no weight is mapped or read, no cache allocated, and no
    token has a text."""


class Vocab:
    """Text to tokens and back. Valid as long as its model."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.n_tokens = int(c.llama_vocab_n_tokens(handle))
        self.is_empty = bool(c.llama_vocab_type(handle) == c.LLAMA_VOCAB_TYPE_NONE)
        bos = int(c.llama_vocab_bos(handle))
        adds_bos = bool(c.llama_vocab_get_add_bos(handle)) and bos >= 0
        self._bos_text = c.llama_vocab_get_text(handle, bos) if adds_bos else b""
        self.adds_end = bool(c.llama_vocab_get_add_eos(handle) or c.llama_vocab_get_add_sep(handle))
        """A text's last token is one that ends it."""
        self._piece = ctypes.create_string_buffer(256)

    def tokenize(self, text: str) -> Tokens:
        """Special tokens parsed; BOS added where the model wants one and the text has none."""
        raw = text.encode()
        has_bos = bool(self._bos_text) and raw.startswith(self._bos_text)
        # A token covers at least one byte, before normalising; two more for BOS and EOS.
        tokens = np.empty(len(raw) + 2, dtype=np.int32)
        n = self._tokenize(raw, tokens, not has_bos)
        if n < 0:
            tokens = np.empty(-n, dtype=np.int32)
            n = self._tokenize(raw, tokens, not has_bos)
        assert 0 <= n <= len(tokens), (n, len(raw))
        return tokens[:n].copy()

    def _tokenize(self, raw: bytes, tokens: Tokens, add_special: bool) -> int:
        """How many there are; negative if they have no room."""
        room = tokens.ctypes.data_as(ctypes.POINTER(c.llama_token))
        return int(
            c.llama_tokenize(self.handle, raw, len(raw), room, len(tokens), add_special, True)
        )

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The token's bytes, perhaps part of a character; of special tokens only if wanted."""
        n = c.llama_token_to_piece(self.handle, token, self._piece, len(self._piece), 0, special)
        if n < 0:
            self._piece = ctypes.create_string_buffer(-n)
            return self.piece(token, special=special)
        return self._piece.raw[:n]

    @cached_property
    def longest_token(self) -> int:
        """Bytes of the longest token's entry, where bytes may be escaped but none left out."""
        return int(c.llama_vocab_longest_text(self.handle))

    @cached_property
    def ends(self) -> frozenset[int]:
        """All tokens that end a generation."""
        n = c.llama_vocab_eog_tokens(self.handle, None, 0)
        tokens = (c.llama_token * n)()
        c.llama_vocab_eog_tokens(self.handle, tokens, n)
        return frozenset(tokens)


class Model:
    """A loaded model: what it holds and where. Valid inside open_model."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.vocab = Vocab(c.llama_model_get_vocab(handle))

    @property
    def has_separate_encoder(self) -> bool:
        """As T5 has, with a decoder or without. llama.cpp does not count BERT among these."""
        return bool(c.llama_model_has_encoder(self.handle))

    @property
    def has_states(self) -> bool:
        """A sequence has a state, or a state beside its cells: recurrent or hybrid."""
        handle = self.handle
        return bool(c.llama_model_is_recurrent(handle) or c.llama_model_is_hybrid(handle))

    @property
    def n_ctx_train(self) -> int:
        return int(c.llama_model_n_ctx_train(self.handle))

    @property
    def named_pooling(self) -> int | None:
        """llama.cpp's number for how the GGUF says a text's vectors become one; None: not at
        all."""
        named = self._metadata(f"{self._metadata('general.architecture')}.pooling_type")
        return int(named) if named else None

    def _metadata(self, key: str) -> str:
        """A value of the GGUF's header as text, empty if it has none."""
        text = ctypes.create_string_buffer(256)
        c.llama_model_meta_val_str(self.handle, key.encode(), text, len(text))
        return text.value.decode(errors="replace")

    def weights(self) -> list[Weight]:
        extent = c.llama_weight_extent()
        weights = []
        for i in range(c.llama_model_n_weights(self.handle)):
            c.llama_model_weight(self.handle, i, ctypes.byref(extent))
            mapping = extent.mapping if extent.mapping >= 0 else None
            name = extent.name.decode(errors="replace")
            weights.append(Weight(name, extent.data or 0, extent.size, mapping, extent.host))
        return weights

    def mappings(self) -> list[Range]:
        """The addresses at which each file is mapped, from its first byte to its last, in the
        order of the files. Parts without weights have been unmapped again."""
        address, size = ctypes.c_void_p(), ctypes.c_size_t()
        mappings = []
        for i in range(c.llama_model_n_mappings(self.handle)):
            c.llama_model_mapping(self.handle, i, ctypes.byref(address), ctypes.byref(size))
            start = address.value or 0
            mappings.append(Range(start, start + size.value))
        return mappings


@contextmanager
def open_model(paths: Sequence[Path], options: ModelOptions, log: NativeLog) -> Iterator[Model]:
    """Loads the model in these files, the splits in order. Raises NativeError."""
    params = c.llama_model_default_params()
    params.use_mmap = options.use_mmap
    params.use_mlock = options.use_mlock
    params.prefetch = options.prefetch
    params.n_gpu_layers = options.n_gpu_layers
    if options.layout_only:
        params.no_alloc = True
        params.kv_overrides = vocabulary_overrides(paths[0])
    # Both would read weights into anonymous memory behind the mapping's back.
    params.lazy_mode = c.LLAMA_LAZY_MODE_OFF
    params.use_extra_bufts = False
    # Always by explicit paths: the store's blobs do not carry llama.cpp's split names.
    names = (ctypes.c_char_p * len(paths))(*(bytes(path) for path in paths))
    handle = c.llama_model_load_from_splits(names, len(paths), params)
    if not handle:
        raise NativeError(log.last_errors())
    try:
        yield Model(handle)
    finally:
        c.llama_model_free(handle)


class Batch:
    """The tokens of one decode. One is made per context and filled anew for each step."""

    def __init__(self, capacity: int) -> None:
        self._tokens = np.zeros(capacity, dtype=np.int32)
        self._positions = np.zeros(capacity, dtype=np.int32)
        self._n_seqs = np.ones(capacity, dtype=np.int32)
        self._seqs = np.zeros(capacity, dtype=np.int32)
        first, width = self._seqs.ctypes.data, self._seqs.itemsize
        self._seq_pointers = first + width * np.arange(capacity, dtype=np.uintp)
        self._outputs = np.zeros(capacity, dtype=np.int8)
        self._counting = np.arange(capacity, dtype=np.int32)
        fields = dict(c.llama_batch._fields_)
        self.native = c.llama_batch(
            n_tokens=0,
            token=self._tokens.ctypes.data_as(fields["token"]),
            pos=self._positions.ctypes.data_as(fields["pos"]),
            n_seq_id=self._n_seqs.ctypes.data_as(fields["n_seq_id"]),
            seq_id=self._seq_pointers.ctypes.data_as(fields["seq_id"]),
            logits=self._outputs.ctypes.data_as(fields["logits"]),
        )

    def clear(self) -> None:
        self.native.n_tokens = 0

    def add(
        self, tokens: Tokens, position: int, seq: int, *, output: bool, all_outputs: bool = False
    ) -> int:
        """Appends a run of one sequence. Index of its last token, whose logits `output` wants;
        `all_outputs` wants those of all."""
        start = int(self.native.n_tokens)
        end = start + len(tokens)
        self._tokens[start:end] = tokens
        self._positions[start:end] = self._counting[: len(tokens)] + position
        self._seqs[start:end] = seq
        self._outputs[start:end] = all_outputs
        self._outputs[end - 1] = output
        self.native.n_tokens = end
        return end - 1


@dataclass(frozen=True)
class ContextOptions:
    """Sizes in tokens. n_ctx 0 takes the model's own."""

    n_ctx: int
    n_batch: int
    n_ubatch: int
    n_threads: int
    n_seq_max: int
    type_k: CacheType
    type_v: CacheType
    flash_attn: FlashAttention


class Context:
    """KV cells and compute buffers of a model. Valid inside open_context."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self._memory = c.llama_get_memory(handle)
        self.has_memory = bool(self._memory)
        """Without, as in encoders, a text is read whole, and none can be written."""
        model = c.llama_get_model(handle)
        self._window = int(c.llama_model_n_swa(model))
        self.whole_states = bool(
            c.llama_model_is_recurrent(model) or c.llama_model_is_hybrid(model)
        )
        self.memory_bytes = int(c.llama_memory_bytes(self._memory))
        """All buffers of keys, values and recurrent state."""
        self.n_ctx = int(c.llama_n_ctx(handle))
        self.n_batch = int(c.llama_n_batch(handle))
        self.n_ubatch = int(c.llama_n_ubatch(handle))

    def decode(self, batch: Batch) -> int:
        """0: done. 1: no KV cells left, nothing changed. Else failed, perhaps half-way."""
        return int(c.llama_decode(self.handle, batch.native))

    def reaches(self, seq: int, n: int) -> bool:
        """Whether the sequence has all cells that position `n` attends to. Cells that have
        left a sliding window are given to others, the lowest positions first."""
        if self._window == 0:
            return True
        first = int(c.llama_memory_seq_pos_min(self._memory, seq))
        return 0 <= first <= max(0, n - self._window)

    def keep(self, seq: int, n: int) -> None:
        """Frees the KV cells behind the first `n`."""
        c.llama_memory_seq_rm(self._memory, seq, n, -1)

    def share(self, source: int, seq: int, n: int) -> None:
        """Enters another sequence into the first `n` cells of `source`."""
        c.llama_memory_seq_cp(self._memory, source, seq, 0, n)

    def logits(self, index: int, n_vocab: int) -> npt.NDArray[np.float32]:
        """Those behind the batch's token at `index`. A view: valid until the next decode."""
        row = c.llama_get_logits_ith(self.handle, index)
        assert row, index
        return np.ctypeslib.as_array(row, (n_vocab,))

    def forget(self, seq: int) -> None:
        """Frees the KV cells of a sequence."""
        c.llama_memory_seq_rm(self._memory, seq, -1, -1)


@contextmanager
def open_context(model: Model, options: ContextOptions, log: NativeLog) -> Iterator[Context]:
    """Raises NativeError, for one when the KV cache does not fit in memory."""
    params = c.llama_context_default_params()
    params.n_ctx = options.n_ctx
    params.n_batch = options.n_batch
    params.n_ubatch = options.n_ubatch
    params.n_seq_max = options.n_seq_max
    # One row of logits per sequence, not per token: with a vocabulary of 262,144 the
    # difference is half a gigabyte of compute buffer.
    params.n_outputs_max = options.n_seq_max
    params.n_threads = params.n_threads_batch = options.n_threads
    # All sequences draw on one pool of cells, so that a lone request may use the whole context.
    params.kv_unified = True
    params.type_k = _CACHE_TYPES[options.type_k]
    params.type_v = _CACHE_TYPES[options.type_v]
    params.flash_attn_type = _FLASH_ATTENTION[options.flash_attn]
    params.swa_full = False
    handle = c.llama_init_from_model(model.handle, params)
    if not handle:
        raise NativeError(log.last_errors())
    try:
        yield Context(handle)
    finally:
        c.llama_free(handle)


class EmbeddingContext:
    """A context that gives a vector for each token. Valid inside open_embedding_context."""

    def __init__(self, context: Context, n_embd: int) -> None:
        self._context = context
        self._batch = Batch(context.n_batch)
        self.n_embd = n_embd
        self.has_memory = context.has_memory
        self.reads_whole = not (context.has_memory and c.llama_get_causal_attn(context.handle))
        """A token attends to later ones too, so all of a text are read at once."""
        self.n_ctx = context.n_ctx
        self.n_batch = context.n_batch
        self.memory_bytes = context.memory_bytes
        self.forget = context.forget

    def read(self, runs: Sequence[tuple[int, int, Tokens]]) -> npt.NDArray[np.float32] | int:
        """The vectors behind all tokens of these runs, each a sequence, a position and tokens:
        (tokens, n_embd), a view valid until the next read. Or the status of a failure."""
        self._batch.clear()
        for seq, position, tokens in runs:
            self._batch.add(tokens, position, seq, output=True, all_outputs=True)
        if status := self._context.decode(self._batch):
            return status
        rows = c.llama_get_embeddings(self._context.handle)
        return np.ctypeslib.as_array(rows, (int(self._batch.native.n_tokens), self.n_embd))


@contextmanager
def open_embedding_context(
    model: Model, options: ContextOptions, log: NativeLog
) -> Iterator[EmbeddingContext]:
    """A second context, beside the one that generates, whose cells and buffers are its own.
    n_batch tokens are computed at a time. Raises NativeError."""
    params = c.llama_context_default_params()
    params.n_ctx = options.n_ctx
    # All tokens are outputs, for which llama.cpp has a row of logits each, wanted or not.
    params.n_batch = params.n_ubatch = params.n_outputs_max = options.n_batch
    params.n_seq_max = options.n_seq_max
    params.n_threads = params.n_threads_batch = options.n_threads
    params.kv_unified = True
    params.type_k = _CACHE_TYPES[options.type_k]
    params.type_v = _CACHE_TYPES[options.type_v]
    params.flash_attn_type = _FLASH_ATTENTION[options.flash_attn]
    params.swa_full = False
    params.embeddings = True
    # A vector for each token: pooled by llama.cpp, a text would have to fit into one ubatch.
    params.pooling_type = c.LLAMA_POOLING_TYPE_NONE
    handle = c.llama_init_from_model(model.handle, params)
    if not handle:
        raise NativeError(log.last_errors())
    try:
        yield EmbeddingContext(Context(handle), int(c.llama_model_n_embd_out(model.handle)))
    finally:
        c.llama_free(handle)


def need(paths: Sequence[Path], n_gpu_layers: int, options: ContextOptions) -> Need:
    """What the model would take of RAM with such a context, exactly, as llama.cpp lays it out
    without reading a weight or allocating. Takes as long as reading the header twice. A cache on
    a device counts as if it were in RAM. Raises NativeError.
    """
    log = NativeLog(quiet=True)
    layout = ModelOptions(
        use_mmap=False,
        use_mlock=False,
        prefetch=False,
        n_gpu_layers=n_gpu_layers,
        layout_only=True,
    )
    with _log_to(log), open_model(paths, layout, log) as model:
        weights = weight_map(model.weights(), PAGE_BYTES).bytes
        with open_context(model, options, log) as context:
            return Need(weights.anonymous, context.memory_bytes, log.compute_bytes)


class Candidates:
    """Tokens with their logits, in the shape that llama.cpp's samplers work on."""

    def __init__(self, n_vocab: int) -> None:
        self._data = np.empty(n_vocab, dtype=_TOKEN_DATA)
        self._tokens = np.arange(n_vocab, dtype=np.int32)
        self._native = c.llama_token_data_array()

    def fill(self, context: Context, index: int) -> None:
        """Every token, with the logits of the batch's token at `index`."""
        self._data["id"] = self._tokens
        self._data["logit"] = context.logits(index, len(self._data))
        self._native.size = len(self._data)

    def only(self, token: int) -> None:
        self._data[0] = (token, 1.0, 0.0)
        self._native.size = 1

    def ban(self, tokens: Sequence[int]) -> None:
        """As fill left them, without some."""
        self._data["logit"][tokens] = -np.inf

    def keep_possible(self) -> int:
        """Drops those of no probability: some samplers do not reckon with them. How many stay."""
        left = self._data[: self._native.size]
        left = left[left["logit"] > -np.inf]
        self._data[: len(left)] = left
        self._native.size = len(left)
        return len(left)

    def apply(self, sampler: int) -> int:
        """The token that the sampler has selected, if it is one that selects."""
        self._native.data = self._data.ctypes.data_as(_TOKEN_DATA_POINTER)
        self._native.selected, self._native.sorted = -1, False
        c.llama_sampler_apply(sampler, ctypes.byref(self._native))
        return int(self._native.data[max(0, self._native.selected)].id)


class Grammar:
    """Follows a text and knows which tokens its GBNF admits next."""

    def __init__(self, vocab: Vocab, text: str, log: NativeLog) -> None:
        """Raises NativeError with llama.cpp's reason."""
        with log.capturing_errors():
            self._sampler = c.llama_sampler_init_grammar(vocab.handle, text.encode(), b"root")
        if not self._sampler:
            raise NativeError(log.last_errors())

    def restrict(self, candidates: Candidates) -> int:
        """Leaves the candidates that are admitted. How many they are.

        Raises NativeError for a grammar that llama.cpp can follow no further, as accept does.
        """
        candidates.apply(self._sampler)
        self._check()
        return candidates.keep_possible()

    def accept(self, token: int) -> None:
        c.llama_sampler_accept(self._sampler, token)
        self._check()

    def close(self) -> None:
        c.llama_sampler_free(self._sampler)

    def _check(self) -> None:
        error = c.llama_sampler_grammar_error(self._sampler)
        if error is not None:
            raise NativeError(error.decode(errors="replace"))


class Sampler:
    """A chain of llama.cpp's samplers, applied in the order they were added."""

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab.handle
        self._n_vocab = vocab.n_tokens
        self._chain = c.llama_sampler_chain_init(c.llama_sampler_chain_default_params())

    def add_logit_bias(self, bias: dict[int, float]) -> None:
        entries = (c.llama_logit_bias * len(bias))(*bias.items())
        self._add(c.llama_sampler_init_logit_bias(self._n_vocab, len(bias), entries))

    def add_penalties(self, last_n: int, repeat: float, frequency: float, presence: float) -> None:
        self._add(
            c.llama_sampler_init_penalties(self._n_vocab, last_n, repeat, frequency, presence)
        )

    def add_dry(
        self, multiplier: float, base: float, allowed: int, last_n: int, breakers: tuple[str, ...]
    ) -> None:
        names = (ctypes.c_char_p * len(breakers))(*(text.encode() for text in breakers))
        self._add(
            c.llama_sampler_init_dry(
                self._vocab, multiplier, base, allowed, last_n, names, len(breakers)
            )
        )

    def add_top_k(self, k: int) -> None:
        self._add(c.llama_sampler_init_top_k(k))

    def add_typical(self, p: float) -> None:
        self._add(c.llama_sampler_init_typical(p, 1))

    def add_top_p(self, p: float) -> None:
        self._add(c.llama_sampler_init_top_p(p, 1))

    def add_min_p(self, p: float) -> None:
        self._add(c.llama_sampler_init_min_p(p, 1))

    def add_xtc(self, probability: float, threshold: float, seed: int) -> None:
        self._add(c.llama_sampler_init_xtc(probability, threshold, 1, seed))

    def add_temperature(self, temperature: float) -> None:
        self._add(c.llama_sampler_init_temp(temperature))

    def add_mirostat(self, version: int, tau: float, eta: float, seed: int) -> None:
        if version == 1:
            self._add(
                c.llama_sampler_init_mirostat(self._n_vocab, seed, tau, eta, _MIROSTAT_TOKENS)
            )
        else:
            self._add(c.llama_sampler_init_mirostat_v2(seed, tau, eta))

    def add_draw(self, seed: int) -> None:
        self._add(c.llama_sampler_init_dist(seed))

    def add_greedy(self) -> None:
        self._add(c.llama_sampler_init_greedy())

    def accept(self, token: int) -> None:
        """Counts a token that was not sampled (the prompt's) for the penalties."""
        c.llama_sampler_accept(self._chain, token)

    def sample(self, context: Context, index: int) -> int:
        """Draws from the logits of the batch's token at `index`, and accepts what it drew."""
        return int(c.llama_sampler_sample(self._chain, context.handle, index))

    def choose(self, candidates: Candidates) -> int:
        """Draws from the candidates, which it may change, and does not accept."""
        return candidates.apply(self._chain)

    def close(self) -> None:
        c.llama_sampler_free(self._chain)

    def _add(self, sampler: int) -> None:
        c.llama_sampler_chain_add(self._chain, sampler)
