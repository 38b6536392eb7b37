"""corral's own version, and whether the installed llama.cpp is corral's."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

VERSION = "0.1.0"


class LibraryError(Exception):
    """The patched llama.cpp is not installed; the message says how to get it."""


def check_library() -> str:
    """The version of the patched llama-cpp-python. Imports nothing. Raises LibraryError."""
    try:
        found = version("llama_cpp_python")
    except PackageNotFoundError:
        raise LibraryError(
            "llama-cpp-python is not installed; run scripts/build_llama to build corral's"
        ) from None
    if not found.partition("+")[2].startswith("corral"):
        raise LibraryError(
            f"llama-cpp-python {found} is not corral's patched build; run scripts/build_llama"
        )
    return found
