"""Whether a model's memory fits before any of it is taken, and what to say if not."""

from __future__ import annotations

from dataclasses import dataclass

from residency.headroom import HOST, Headroom
from residency.modes import Mode


@dataclass(frozen=True)
class Need:
    """Bytes of RAM that a loaded model cannot give back."""

    weights: int
    """That will be copied."""
    kv: int
    """Of the KV cache and of recurrent states."""
    compute: int
    """Of the buffers for a batch: activations and logits."""

    @property
    def without_weights(self) -> int:
        return self.kv + self.compute

    @property
    def total(self) -> int:
        return self.weights + self.without_weights


def refusal(mode: Mode, need: Need, room: Headroom) -> str | None:
    """Why the mode cannot be loaded, and which would serve; None if it fits."""
    if need.total <= room.bytes:
        return None
    return (
        f"weight residency {mode.value!r} needs {need.total} bytes of RAM (weights "
        f"{need.weights}, KV cache {need.kv}, compute {need.compute}) and {room.bytes} are "
        f"available: {room.bound} binds. {_remedy(need, room)}"
    )


def _remedy(need: Need, room: Headroom) -> str:
    more = "free memory" if room.binds == HOST else "raise the limit"
    if need.without_weights > room.bytes:
        return f"No mode would serve: {more}, or choose a smaller n_ctx"
    return (
        f"{Mode.EAGER.value!r} or {Mode.LAZY.value!r} would serve, as they keep the weights "
        f"in the page cache, from which the kernel can take them; or {more}"
    )
