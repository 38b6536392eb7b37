"""What the header of a GGUF model says: of one file, or of a split set read as one model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gguf.constants import Keys, LlamaFileType

from manifests.errors import InvalidGGUF
from manifests.scan import Scalar, Scan, scan
from manifests.source import Stamp, reading
from manifests.tensors import Tensor

_SPLIT_NAME = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_GUESSED_FILE_TYPE = 1024  # LLAMA_FTYPE_GUESSED, a flag beside the type


@dataclass(frozen=True)
class GGUFHeader:
    architecture: str
    quantization: str
    """The file's own word for it (Q4_K_M), else the type that most weight bytes have."""
    parameter_count: int
    context_length: int
    embedding_length: int
    block_count: int
    chat_template: str | None
    bos_token: str | None
    eos_token: str | None
    weight_bytes: int
    stamps: tuple[Stamp, ...]
    """Of the files that all this was read from, in order."""
    tensors: tuple[Tensor, ...]
    metadata: Mapping[str, Scalar]
    """Every scalar of the header. Arrays, strings over 1 MiB and non-finite floats are not in."""

    @property
    def file_bytes(self) -> int:
        return sum(stamp.size for stamp in self.stamps)


def read_model(paths: Sequence[Path]) -> GGUFHeader:
    """The header of a whole model in one or more files, in order. Raises InvalidGGUF when they
    are not exactly one model."""
    scans = [scan(path) for path in paths]
    _check_splits(scans)
    header = _build(scans)
    if not header.tensors:
        raise InvalidGGUF(paths[0], "has no tensors: it is a vocabulary, not a model")
    return header


def split_paths(path: Path) -> list[Path]:
    """All files of the model that path belongs to, in order: itself unless it is named as one
    of a split. Raises InvalidGGUF naming the first that is missing."""
    match = _SPLIT_NAME.fullmatch(path.name)
    if match is None:
        return [path]
    number, count = int(match["number"]), int(match["count"])
    if not 1 <= number <= count:
        raise InvalidGGUF(path, f"is named split {number} of {count}")
    paths = []
    with reading(path):
        for index in range(1, count + 1):
            sibling = path.with_name(f"{match['stem']}-{index:05}-of-{count:05}.gguf")
            if not sibling.is_file():
                raise InvalidGGUF(path, f"split {index} of {count} is missing: {sibling.name}")
            paths.append(sibling)
    return paths


def _check_splits(scans: Sequence[Scan]) -> None:
    for index, each in enumerate(scans):
        number = each.metadata.get(Keys.Split.LLM_KV_SPLIT_NO, 0)
        count = each.metadata.get(Keys.Split.LLM_KV_SPLIT_COUNT, 0) or 1
        if not isinstance(number, int) or (number, count) != (index, len(scans)):
            raise InvalidGGUF(
                each.path,
                f"says it is split {number} of {count} (the first is 0), and is given as "
                f"file {index} of {len(scans)}",
            )
    expected = scans[0].metadata.get(Keys.Split.LLM_KV_SPLIT_TENSORS_COUNT)
    found = sum(len(each.tensors) for each in scans)
    if len(scans) > 1 and expected != found:
        raise InvalidGGUF(
            scans[0].path, f"the splits hold {found:,} tensors, the header says {expected}"
        )
    names = Counter(tensor.name for each in scans for tensor in each.tensors)
    for name, times in names.items():
        if times > 1:
            raise InvalidGGUF(scans[0].path, f"the tensor {name!r} is in {times} of the splits")


def _build(scans: Sequence[Scan]) -> GGUFHeader:
    first = scans[0]
    architecture = _architecture(first)
    template = _text(first, Keys.Tokenizer.CHAT_TEMPLATE)
    return GGUFHeader(
        architecture=architecture,
        quantization=_quantization(scans),
        parameter_count=sum(t.elements for each in scans for t in each.tensors),
        context_length=_count(first, Keys.LLM.CONTEXT_LENGTH.format(arch=architecture)),
        embedding_length=_count(first, Keys.LLM.EMBEDDING_LENGTH.format(arch=architecture)),
        block_count=_count(first, Keys.LLM.BLOCK_COUNT.format(arch=architecture)),
        chat_template=template,
        bos_token=first.special_tokens.get(Keys.Tokenizer.BOS_ID),
        eos_token=first.special_tokens.get(Keys.Tokenizer.EOS_ID),
        weight_bytes=sum(t.size for each in scans for t in each.tensors),
        stamps=tuple(each.stamp for each in scans),
        tensors=tuple(
            replace(tensor, file=file) for file, each in enumerate(scans) for tensor in each.tensors
        ),
        metadata=first.metadata,
    )


def _architecture(first: Scan) -> str:
    architecture = _text(first, Keys.General.ARCHITECTURE)
    if not architecture:
        raise InvalidGGUF(first.path, f"has no {Keys.General.ARCHITECTURE}")
    return architecture


def _text(first: Scan, key: str) -> str | None:
    if key in first.skipped:
        raise InvalidGGUF(first.path, f"{key} is too long or no string")
    value = first.metadata.get(key)
    if value is not None and not isinstance(value, str):
        raise InvalidGGUF(first.path, f"{key} is {value!r}, not a string")
    return value


def _count(first: Scan, key: str) -> int:
    """A size without which llama.cpp refuses to load."""
    value = first.metadata.get(key)
    if value is None:
        raise InvalidGGUF(first.path, f"has no {key}: not a language model llama.cpp can load")
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 31:
        raise InvalidGGUF(first.path, f"{key} is {value!r}, not a sensible count")
    return value


def _quantization(scans: Sequence[Scan]) -> str:
    file_type = scans[0].metadata.get(Keys.General.FILE_TYPE)
    if isinstance(file_type, int):
        try:
            known = LlamaFileType(file_type & ~_GUESSED_FILE_TYPE)
        except ValueError:
            return _dominant_type(scans)
        return str(known.name).removeprefix("MOSTLY_").removeprefix("ALL_")
    return _dominant_type(scans)


def _dominant_type(scans: Sequence[Scan]) -> str:
    sizes: Counter[str] = Counter()
    for each in scans:
        for tensor in each.tensors:
            sizes[tensor.type] += tensor.size
    return sizes.most_common(1)[0][0] if sizes else "unknown"
