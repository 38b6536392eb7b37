"""What llama.cpp logs: warnings go to our log, errors are kept to explain a failure."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger("llama.cpp")

# ggml_log_level, from ggml.h.
_INFO, _WARN, _ERROR = 2, 3, 4

# What a step computes in. llama.cpp tells it nowhere else in its C interface: one line for each
# buffer, rounded to 0.01 MiB.
_COMPUTE_BUFFER = re.compile(rb"(?:compute|output) buffer size = +([0-9.]+) MiB")
# What the parser says, without the line breaks of the grammar that it quotes behind it.
_GRAMMAR_FAULT = re.compile(r"error parsing grammar: (.{1,200})")
_MAX_CAPTURE_BYTES = 4096

_EXPECTED = (
    # The engine frees cells, or preempts a request, and decodes again.
    b"failed to find a memory slot",
    # The worker pools what an embedding model gives for each token.
    b"model default pooling_type",
)
"""Lines that tell of no fault."""


class NativeLog:
    """Receives llama.cpp's log lines, on whatever thread they arise."""

    def __init__(self, *, quiet: bool = False) -> None:
        """A quiet one keeps errors and passes nothing on."""
        self._quiet = quiet
        self._errors: deque[str] = deque(maxlen=4)
        self.compute_bytes = 0
        """Sum of the buffers for activations and logits."""

    def on_line(self, level: int, text: bytes) -> None:
        if level == _INFO:
            self._measure(text)
        elif level in (_WARN, _ERROR) and not any(each in text for each in _EXPECTED):
            line = text.decode(errors="replace").strip()
            if not self._quiet:
                logger.log(logging.ERROR if level == _ERROR else logging.WARNING, "%s", line)
            if level == _ERROR:
                self._errors.append(line)

    @contextmanager
    def capturing_errors(self) -> Iterator[None]:
        """What native code prints to stderr, past its log, counts as an error line.

        The grammar parser does, and prints the grammar too: that is nothing for a log.
        """
        self._errors.clear()
        sys.stderr.flush()
        kept, capture = os.dup(2), os.memfd_create("stderr")
        try:
            os.dup2(capture, 2)
            try:
                yield
            finally:
                os.dup2(kept, 2)
            printed = os.pread(capture, _MAX_CAPTURE_BYTES, 0).decode(errors="replace")
        finally:
            os.close(kept)
            os.close(capture)
        if match := _GRAMMAR_FAULT.search(printed):
            self._errors.appendleft(match[1])

    def last_errors(self) -> str:
        """The last error lines, oldest first; forgets them."""
        text = "; ".join(self._errors)
        self._errors.clear()
        return text or "llama.cpp gave no reason"

    def _measure(self, text: bytes) -> None:
        if match := _COMPUTE_BUFFER.search(text):
            self.compute_bytes += round(float(match[1]) * (1 << 20))
