"""Messages between the daemon and the worker process of one model.

Each message is one msgpack map, tagged by its class, behind a 4-byte big-endian
length, on a socket pair. They are grouped by who receives them. All byte
counts are bytes, all durations seconds, all token counts tokens.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Literal

import msgspec

# A prompt of a million tokens is about 5 MB of text; nothing honest is longer than this.
MAX_FRAME_BYTES = 64 << 20

FinishReason = Literal["stop", "length", "cancelled", "error"]
CacheType = Literal["f16", "q8_0", "q4_0"]
FlashAttention = Literal["auto", "on", "off"]
Pooling = Literal["model", "mean", "cls", "last"]

FileRuns = list[list[tuple[int, int]]]
"""By file, in their order: start and end offsets of runs of bytes, sorted and disjoint."""

MAX_EMBEDS = 32
"""Embedding requests that a worker has at a time, beside those in its slots."""


class Sampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the next token is drawn. Defaults are llama-server's."""

    temperature: float = 0.8
    """0 or less is greedy."""
    top_k: int = 40
    """0 or less keeps all."""
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    """Tokens the penalties look back on; -1 is the whole context, 0 none."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    """0 is off."""
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    """Tokens that are searched for repetitions; -1 is the whole context, 0 none."""
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    """A repetition does not reach over these."""
    xtc_probability: float = 0.0
    """0 is off."""
    xtc_threshold: float = 0.1
    mirostat: int = 0
    """1 or 2: that version draws, in the place of all samplers but bias and temperature."""
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    grammar: str = ""
    """GBNF that the answer has to follow; empty: any text."""
    seed: int | None = None
    """Of 32 bits; None draws a fresh seed for the request."""
    logit_bias: dict[int, float] = {}


# -- to the worker ---------------------------------------------------------------------


class Load(msgspec.Struct, frozen=True, tag=True):
    """Load the model. First and only once; answered by Ready or LoadFailed."""

    model: str
    paths: list[str]
    """The GGUF files in order of the splits; one for a model in one file."""
    residency: str
    """A name from residency.modes."""
    pin: list[str]
    """Names from residency.classes: locked at load, whatever the mode."""
    repin_requests: int
    """lazy_then_pin_resident repeats its pin after so many completed requests; 0: never."""
    n_ctx: int
    """KV cells of the whole context, shared by the slots; 0 takes the model's own."""
    n_batch: int
    n_ubatch: int
    prefill_slice: int
    """Prompt tokens that a step takes at most while a slot decodes."""
    n_threads: int
    """0 chooses from the CPUs and the cgroup's quota."""
    n_gpu_layers: int
    n_slots: int
    type_k: CacheType
    """How the KV cache stores keys, and type_v values."""
    type_v: CacheType
    flash_attn: FlashAttention
    """auto: where the model and its devices support it."""
    pooling: Pooling
    """How a text's vectors become one: model is as the GGUF says, else by the last token."""
    replay: FileRuns = []
    """The working set that was kept of these files: read once, after Ready."""


class Generate(msgspec.Struct, frozen=True, tag=True):
    """Run one request. Answered by Accepted or Rejected, then pieces, then Finished."""

    id: str
    prompt: str | list[int]
    """Text to tokenise (special tokens parsed, BOS added where the model wants one and
    the text does not start with it) or token ids taken as they are."""
    sampling: Sampling
    max_tokens: int
    """Tokens to generate at most; negative is until the context is full, 0 prefills only."""
    stop: list[str] = []
    ignore_eos: bool = False
    logprobs: int | None = None
    """How many of the likeliest tokens to tell beside each one drawn; None tells nothing."""


class Embed(msgspec.Struct, frozen=True, tag=True):
    """Turn texts into vectors. Answered by Embedded…, then Finished, or by Rejected."""

    id: str
    inputs: Sequence[str | list[int]]
    """Each as a prompt of Generate."""
    truncate: bool = False
    """Cut an input that is too long; else it is refused, and the request with it."""
    dimensions: int | None = None
    """Keep so many of a vector's first numbers; None keeps all."""


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """Stop a request, wherever it is. Answered by its Finished; ignored if unknown."""

    id: str


class Apply(msgspec.Struct, frozen=True, tag=True):
    """Keep the mapped weights in RAM in another way from now on, while requests run. Fields as
    in Load; both modes leave the file mapped. Answered by a PinReport when the change is done,
    unless another Apply comes before."""

    residency: str
    pin: list[str]
    repin_requests: int


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """End all requests as cancelled, free the model, exit 0."""


ToWorker = Load | Generate | Embed | Cancel | Apply | Shutdown

# -- to the daemon ---------------------------------------------------------------------


class WeightBytes(msgspec.Struct, frozen=True):
    """The weights of the loaded model, by what backs them."""

    file: int = 0
    anonymous: int = 0
    device: int = 0


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The model is loaded and serves."""

    load_seconds: float
    n_ctx: int
    n_slots: int
    weights: WeightBytes
    kv_bytes: int
    copies: list[tuple[int, int]] = []
    """Where in the worker's memory the weights lie that it copied: start and end addresses
    of whole pages, sorted and disjoint."""
    mapped_at: list[int] = []
    """The address of the first byte of each file, in their order, even where that byte is not
    mapped any more; empty if nothing is mapped."""
    unmapped: dict[str, Literal["anonymous", "device"]] = {}
    """What memory holds each tensor that lies in no mapping of a file."""


class LoadFailed(msgspec.Struct, frozen=True, tag=True):
    """The model could not be loaded; the worker exits."""

    message: str


class Accepted(msgspec.Struct, frozen=True, tag=True):
    """The prompt is tokenised, fits, and has a slot."""

    id: str
    prompt_tokens: int


class Rejected(msgspec.Struct, frozen=True, tag=True):
    """The request cannot run as asked: the caller's fault. Nothing more follows for it."""

    id: str
    message: str
    param: str | None = None


class Likelihood(msgspec.Struct, frozen=True, array_like=True):
    """A token and how likely it was."""

    token: bytes
    """Its text, perhaps part of a character."""
    logprob: float
    """Natural logarithm of its share, as the model gave it, before any sampler."""


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """One place in an answer."""

    drawn: Likelihood
    top: list[Likelihood]
    """The likeliest, in that order; the drawn one may be among them."""


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """New text of one request: whole UTF-8, held back while it may begin a stop string."""

    id: str
    text: str
    n_tokens: int
    """Tokens sampled since this request's last piece."""
    logprobs: list[TokenLogprobs] = []
    """Of the tokens whose text begins in this piece, where they were asked for."""


class Step(msgspec.Struct, frozen=True, tag=True):
    """What one step of the engine produced, for all slots at once."""

    pieces: list[Piece]


class Embedded(msgspec.Struct, frozen=True, tag=True):
    """The vectors of a request's next inputs, in their order. None is a sign of life."""

    id: str
    vectors: list[bytes]
    """Each of length 1, in float32, little-endian."""


class ContextGrown(msgspec.Struct, frozen=True, tag=True):
    """The worker has allocated more for KV cells since Ready."""

    kv_bytes: int
    """Of all contexts together."""


class Timings(msgspec.Struct, frozen=True):
    """Where a request's time went, as the worker saw it."""

    prompt_seconds: float
    predicted_seconds: float
    major_faults: int
    """Of the whole worker process while the request ran, so shared with other slots."""
    read_bytes: int | None
    """From disks, as major_faults; None where the system does not count bytes."""


class Finished(msgspec.Struct, frozen=True, tag=True):
    """A request ended; its only end after Accepted, or of an Embed that was not rejected."""

    id: str
    reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    timings: Timings
    error: str | None = None
    """Set when reason is "error"."""
    param: str | None = None
    """Set when the error is the caller's fault: the field that it lies in."""
    cached_tokens: int = 0
    """Of the prompt: those that a slot had in its KV cells already."""


class PinReport(msgspec.Struct, frozen=True, tag=True):
    """A pin of weights was tried, at load or after a completed request, or an Apply is done."""

    bytes_asked: int
    """All that is to be locked now, in whole pages, locked before or not."""
    bytes_locked: int
    """Of these, by the kernel's own count."""
    n_runs: int
    seconds: float
    errno: int
    """0 when all was locked, else of the call that failed."""
    message: str
    """Empty, or what failed and the remedy."""


class WorkingSet(msgspec.Struct, frozen=True, tag=True):
    """What requests have touched of the files since the load; sent after requests, and last of
    all before the end, in the modes that do not read all."""

    residency: str
    """The mode in force."""
    files: FileRuns


ToDaemon = (
    Ready
    | LoadFailed
    | Accepted
    | Rejected
    | Step
    | Embedded
    | ContextGrown
    | Finished
    | PinReport
    | WorkingSet
)

# -- framing ---------------------------------------------------------------------------

_HEADER = struct.Struct(">I")
HEADER_BYTES = _HEADER.size
_encoder = msgspec.msgpack.Encoder()
_to_worker = msgspec.msgpack.Decoder(ToWorker)
_to_daemon = msgspec.msgpack.Decoder(ToDaemon)


class ProtocolError(Exception):
    """The peer sent what is no message: too long, cut off, or of an unknown shape."""


def encode(message: ToWorker | ToDaemon) -> bytes:
    """One frame. Raises ProtocolError if it would be longer than MAX_FRAME_BYTES."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise ProtocolError(f"message of {len(body)} bytes, at most {MAX_FRAME_BYTES} are allowed")
    return _HEADER.pack(len(body)) + body


def body_length(frame: bytes | bytearray) -> int:
    """Length of the body behind the first HEADER_BYTES of a frame. Raises ProtocolError."""
    (length,) = _HEADER.unpack_from(frame)
    if length > MAX_FRAME_BYTES:
        raise ProtocolError(f"frame of {length} bytes, at most {MAX_FRAME_BYTES} are allowed")
    return int(length)


def decode_for_worker(body: bytes) -> ToWorker:
    """The message in a frame's body. Raises ProtocolError."""
    try:
        return _to_worker.decode(body)
    except msgspec.MsgspecError as error:
        raise ProtocolError(str(error)) from error


def decode_for_daemon(body: bytes | bytearray) -> ToDaemon:
    """The message in a frame's body. Raises ProtocolError."""
    try:
        return _to_daemon.decode(body)
    except msgspec.MsgspecError as error:
        raise ProtocolError(str(error)) from error
