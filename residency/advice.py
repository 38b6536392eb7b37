"""Tell the kernel with madvise(2) how weight pages will be used."""

from __future__ import annotations

import errno
from collections.abc import Iterable

from residency import libc
from residency.modes import Advice
from residency.ranges import Range, align_outward, slices

_WILLNEED_BYTES = 1 << 20
"""One WILLNEED reads no more than the device's read-ahead (8 of 96 MiB arrived); pieces
of 1 MiB all arrive."""

_NUMBERS = {
    Advice.WILLNEED: libc.MADV_WILLNEED,
    Advice.RANDOM: libc.MADV_RANDOM,
    Advice.NORMAL: libc.MADV_NORMAL,
    Advice.DONTNEED: libc.MADV_DONTNEED,
    Advice.HUGEPAGE: libc.MADV_HUGEPAGE,
    Advice.NOHUGEPAGE: libc.MADV_NOHUGEPAGE,
}
_NEEDS_HUGE_PAGES = (Advice.HUGEPAGE, Advice.NOHUGEPAGE)


def advise(ranges: Iterable[Range], advice: Advice) -> list[OSError]:
    """Advise on every page that holds a byte of these address ranges.

    Advice is a hint, so what the kernel refused comes back and is not raised; at
    most one error a range, whose rest is then left alone. A kernel without huge pages
    does as if it had been told to use none.
    """
    runs = align_outward(ranges, libc.PAGE_BYTES)
    return [error for run in runs if (error := _advise_run(run, advice))]


def _advise_run(run: Range, advice: Advice) -> OSError | None:
    piece_bytes = _WILLNEED_BYTES if advice is Advice.WILLNEED else len(run)
    try:
        for piece in slices([run], piece_bytes):
            libc.madvise(piece.start, len(piece), _NUMBERS[advice])
    except OSError as error:
        if advice in _NEEDS_HUGE_PAGES and error.errno == errno.EINVAL:
            return None
        return error
    return None
