"""From a Load message to an engine that serves: model, context, residency, in that order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from residency.libc import PAGE_BYTES
from residency.modes import LoadPlan, UnavailableMode, UnknownMode, parse_mode, plan
from residency.paging import paging
from server.protocol import Load, Ready, ToDaemon
from server.worker import llama
from server.worker.engine import Engine
from server.worker.llama_backend import LlamaBackend
from server.worker.native_log import NativeLog
from server.worker.pinning import PinHook, advise_weights, pin_at_load
from server.worker.refusals import LoadRefused
from server.worker.request import Meters
from server.worker.threads import bounded_threads, default_threads
from server.worker.weights import weight_map

# llama.cpp counts cells and positions in 32 bits, and rounds up to 256 cells.
_MIN_CTX = 256
_MAX_CTX = (1 << 31) - _MIN_CTX


def load(message: Load, send: Callable[[ToDaemon], None], stack: ExitStack) -> Engine:
    """Loads; sends Ready, then what became of a pin at load. Raises LoadRefused.

    What it opens goes on `stack`, from which the context is closed before its model.
    """
    started = time.perf_counter()
    try:
        llama.check_library()
        load_plan = plan(parse_mode(message.residency))
        options = context_options(message)
        log = NativeLog()
        stack.enter_context(llama.open_library(log))
        model = stack.enter_context(_open_model(message, load_plan, log))
        weights = weight_map(model.weights(), PAGE_BYTES)
        advise_weights(load_plan, weights.mapped)
        context = stack.enter_context(llama.open_context(model, options, log))
    except (UnknownMode, UnavailableMode, llama.LibraryMismatch, llama.NativeError) as error:
        raise LoadRefused(str(error)) from error
    pinned = pin_at_load(weights.mapped) if load_plan.use_mlock else None
    send(
        Ready(
            load_seconds=time.perf_counter() - started,
            n_ctx=context.n_ctx,
            n_slots=message.n_slots,
            weights=weights.bytes,
            kv_bytes=log.cache_bytes,
            mapped_at=model.mapped_at(),
            unmapped=weights.unmapped,
        )
    )
    if pinned:
        send(pinned)
    return Engine(
        LlamaBackend(model, context, message.n_slots, message.prefill_slice, log),
        send,
        PinHook(weights.mapped, armed=load_plan.pin_after_first),
        Meters(time.perf_counter, paging),
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


@contextmanager
def _open_model(message: Load, plan: LoadPlan, log: NativeLog) -> Iterator[llama.Model]:
    missing = [path for path in message.paths if not Path(path).is_file()]
    if missing:
        raise LoadRefused(f"no such file: {missing[0]}")
    options = llama.ModelOptions(
        use_mmap=plan.use_mmap,
        use_mlock=plan.use_mlock,
        prefetch=plan.prefetch,
        n_gpu_layers=message.n_gpu_layers,
    )
    with llama.open_model([Path(path) for path in message.paths], options, log) as model:
        if not model.is_decoder:
            raise LoadRefused("an encoder generates no text; only decoder models are served")
        if model.vocab.is_empty:
            # llama.cpp aborts when it is asked for text then.
            raise LoadRefused("the model has no tokenizer")
        yield model
