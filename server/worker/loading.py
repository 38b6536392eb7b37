"""From a Load message to an engine that serves: model, context, residency, in that order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from residency.classes import UnknownClass
from residency.libc import PAGE_BYTES
from residency.modes import LoadPlan, UnknownMode
from residency.paging import paging
from residency.policy import parse_policy
from server.protocol import Load, Ready, ToDaemon
from server.worker import llama
from server.worker.dispatch import Dispatcher
from server.worker.embedding import Embedder
from server.worker.engine import Engine
from server.worker.keeping import Keeping
from server.worker.llama_backend import LlamaBackend
from server.worker.llama_reader import ReaderOpener, encoder_options
from server.worker.native_log import NativeLog
from server.worker.pinning import Pinning, advise_weights, may_lock_while_loading
from server.worker.reading import reading
from server.worker.refusals import LoadRefused
from server.worker.request import Meters
from server.worker.resident import copy_weights, refuse_without_room
from server.worker.threads import bounded_threads, default_threads
from server.worker.weights import weight_map

# llama.cpp counts cells and positions in 32 bits, and rounds up to 256 cells.
_MIN_CTX = 256
_MAX_CTX = (1 << 31) - _MIN_CTX


def load(message: Load, send: Callable[[ToDaemon], None], stack: ExitStack) -> Dispatcher:
    """Loads; sends Ready, then what became of a pin at load. Raises LoadRefused.

    What it opens goes on `stack`, from which the contexts are closed before their model. That
    for embeddings is opened at the first request for one.
    """
    started = time.perf_counter()
    try:
        llama.check_library()
        policy = parse_policy(message.residency, message.pin, message.repin_requests)
        load_plan = policy.plan
        options = context_options(message)
        paths = _existing(message.paths)
        log = NativeLog()
        stack.enter_context(llama.open_library(log))
        if load_plan.copy:
            refuse_without_room(paths, message.n_gpu_layers, options)
        ahead = stack.enter_context(reading(paths, message.replay))
        ahead.follow(load_plan)
        model = stack.enter_context(_open_model(paths, message.n_gpu_layers, load_plan, log))
        weights = weight_map(model.weights(), PAGE_BYTES)
        if load_plan.copy:
            weights = copy_weights(model, paths, weights)
        else:
            advise_weights(load_plan, weights)
        context = _open_slots(model, options, log, stack)
    except (UnknownMode, UnknownClass, llama.LibraryMismatch, llama.NativeError) as error:
        raise LoadRefused(str(error)) from error
    kv_bytes = context.memory_bytes if context else 0
    pinning = Pinning(weights, policy)
    pinned = pinning.at_load()
    send(
        Ready(
            load_seconds=time.perf_counter() - started,
            n_ctx=context.n_ctx if context else encoder_options(options, model).n_ctx,
            n_slots=message.n_slots,
            weights=weights.bytes,
            kv_bytes=kv_bytes,
            copies=[(run.start, run.end) for run in weights.copied],
            mapped_at=[mapping.start for mapping in model.mappings()],
            unmapped=weights.unmapped,
        )
    )
    if pinned:
        send(pinned)
    ahead.replay()
    meters = Meters(time.perf_counter, paging)
    engine = None
    if context:
        backend = LlamaBackend(model, context, message.n_slots, message.prefill_slice, log)
        engine = Engine(backend, send, pinning, meters)
    opener = ReaderOpener(
        model,
        options,
        context.n_ctx if context else None,
        kv_bytes,
        message.pooling,
        log,
        stack,
    )
    embedder = Embedder(opener, send, pinning, meters)
    keeping = Keeping(weights.mapped, model.mappings(), policy, send)
    return Dispatcher(
        engine,
        embedder,
        message.prefill_slice,
        pin=pinning,
        ahead=ahead,
        keeping=keeping,
        send=send,
    )


def context_options(message: Load) -> llama.ContextOptions:
    """Raises LoadRefused for sizes that llama.cpp would cut off without a word, and for types of
    the cache that do not go together."""
    if not 0 <= message.n_ctx <= _MAX_CTX:
        raise LoadRefused(f"n_ctx is {message.n_ctx}: choose 0 (the model's own) to {_MAX_CTX}")
    if not 1 <= message.n_slots <= llama.MAX_SEQUENCES:
        raise LoadRefused(f"{message.n_slots} slots: choose 1 to {llama.MAX_SEQUENCES}")
    for name, size in (
        ("n_batch", message.n_batch),
        ("n_ubatch", message.n_ubatch),
        ("prefill_slice", message.prefill_slice),
    ):
        if not 1 <= size <= _MAX_CTX:
            raise LoadRefused(f"{name} is {size}: choose 1 to {_MAX_CTX}")
    if message.type_v != "f16" and message.flash_attn == "off":
        raise LoadRefused(
            f"type_v {message.type_v} needs flash attention and flash_attn is off: "
            "set flash_attn to auto or on, or type_v to f16"
        )
    usable = default_threads()
    return llama.ContextOptions(
        n_ctx=max(message.n_ctx, _MIN_CTX) if message.n_ctx else 0,
        # A step takes a token of every slot at least.
        n_batch=max(message.n_batch, message.n_slots),
        n_ubatch=message.n_ubatch,
        n_threads=bounded_threads(message.n_threads, usable) if message.n_threads > 0 else usable,
        n_seq_max=message.n_slots,
        type_k=message.type_k,
        type_v=message.type_v,
        flash_attn=message.flash_attn,
    )


def _open_slots(
    model: llama.Model, options: llama.ContextOptions, log: NativeLog, stack: ExitStack
) -> llama.Context | None:
    """None: the model keeps nothing of what it has read, as encoders do, and can write no text."""
    with ExitStack() as opened:
        context = opened.enter_context(llama.open_context(model, options, log))
        if not context.has_memory:
            return None
        stack.push(opened.pop_all())
    return context


def _existing(names: Sequence[str]) -> list[Path]:
    paths = [Path(name) for name in names]
    missing = [path for path in paths if not path.is_file()]
    if missing:
        raise LoadRefused(f"no such file: {missing[0]}")
    return paths


@contextmanager
def _open_model(
    paths: Sequence[Path], n_gpu_layers: int, plan: LoadPlan, log: NativeLog
) -> Iterator[llama.Model]:
    options = llama.ModelOptions(
        use_mmap=plan.use_mmap,
        use_mlock=plan.use_mlock and may_lock_while_loading(paths),
        # llama.cpp's own blocks the load until all is read. The reader's lets it go on; a load
        # that locks has to wait anyway.
        prefetch=plan.prefetch and plan.use_mlock,
        n_gpu_layers=n_gpu_layers,
    )
    with llama.open_model(paths, options, log) as model:
        if model.has_separate_encoder:
            raise LoadRefused(
                "a model with an encoder apart, such as T5, is not served: only decoders, and "
                "encoders of the BERT family"
            )
        if model.vocab.is_empty:
            # llama.cpp aborts when it is asked for text then.
            raise LoadRefused("the model has no tokenizer")
        yield model
