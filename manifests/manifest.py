"""The manifest of a stored model: its files, what it is, and how its operator wants it run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)

from manifests.errors import InvalidManifest

# A manifest holds a chat template, licences and messages: some hundred kilobytes at most.
MAX_MANIFEST_BYTES = 16 << 20

INT32_MAX = 2**31 - 1
MAX_N_CTX = 1 << 24
# GGML_MAX_N_THREADS of ggml.
MAX_THREADS = 512
# What JSON encoders write, and what fits into no file system: so that sums and answers hold.
INT64_MAX = 2**63 - 1
MAX_FILE_BYTES = 1 << 46

DIGEST = r"^sha256-[0-9a-f]{64}$"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def _stop_strings(value: object) -> object:
    """One string stands for a list of one; JSON's lists become tuples. An empty string would
    stop every answer before its first token, and clients send it for none."""
    if isinstance(value, str):
        value = [value]
    return tuple(each for each in value if each != "") if isinstance(value, list) else value


def _in_utc(time: datetime) -> datetime:
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise ValueError("a time that UTC's calendar has") from None


def _class_list(value: object) -> object:
    """A text is a list separated by commas, and so may be the elements of one, as repeated lines
    of a Modelfile are. Each class counts once."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list | tuple):
        return value
    if not all(isinstance(each, str) for each in value):
        return tuple(value)
    return tuple(dict.fromkeys(part.strip() for each in value for part in each.split(",")))


Instant = Annotated[AwareDatetime, AfterValidator(_in_utc)]
Count = Annotated[int, Field(ge=0, le=INT64_MAX)]
WholeNumber = Annotated[int, Field(ge=-(2**63), le=2**64 - 1)]


# The names of residency.classes.TensorClass, which manifests do not know.
TensorClassName = Literal[
    "attn", "norm", "embd", "output", "router", "ffn", "expert", "ssm", "rope", "other"
]


class LoaderOptions(_Frozen):
    """How a model is loaded. None is unset: a lower rung of the ladder decides."""

    weight_residency: Annotated[str | None, Field(min_length=1, max_length=64)] = None
    """A mode's name, not checked here: an unknown one in a file is not fatal."""
    pin: Annotated[tuple[TensorClassName, ...] | None, BeforeValidator(_class_list)] = None
    """Classes of tensors that are locked at load, whatever the mode."""
    repin_requests: Annotated[int | None, Field(ge=0, le=1_000_000)] = None
    """lazy_then_pin_resident repeats its pin after so many completed requests; 0: never."""
    n_ctx: Annotated[int | None, Field(ge=0, le=MAX_N_CTX)] = None
    """KV cells of the whole context, 0: as the model was trained."""
    n_batch: Annotated[int | None, Field(ge=1, le=1 << 16)] = None
    n_ubatch: Annotated[int | None, Field(ge=1, le=1 << 16)] = None
    prefill_slice: Annotated[int | None, Field(ge=1, le=1 << 16)] = None
    """Prompt tokens that a step takes at most while a slot decodes."""
    n_threads: Annotated[int | None, Field(ge=0, le=MAX_THREADS)] = None
    """0: chosen from the CPUs and the quota."""
    n_gpu_layers: Annotated[int | None, Field(ge=-1, le=10_000)] = None
    """-1: all."""
    num_parallel: Annotated[int | None, Field(ge=1, le=256)] = None
    """Slots; llama.cpp has at most LLAMA_MAX_SEQ, 256."""
    type_k: Literal["f16", "q8_0", "q4_0"] | None = None
    """How the keys of the KV cache are stored."""
    type_v: Literal["f16", "q8_0", "q4_0"] | None = None
    """How its values are; other than f16 needs flash attention."""
    flash_attn: Literal["auto", "on", "off"] | None = None
    pooling: Literal["model", "mean", "cls", "last"] | None = None
    """How the vectors of a text's tokens become one; model is as its GGUF says."""


class SamplingOptions(_Frozen):
    """What a request may say too. None is unset."""

    temperature: Annotated[float | None, Field(ge=0, le=100)] = None
    top_k: Annotated[int | None, Field(ge=-1, le=INT32_MAX)] = None
    """0 or less keeps all."""
    top_p: Annotated[float | None, Field(ge=0, le=1)] = None
    min_p: Annotated[float | None, Field(ge=0, le=1)] = None
    typical_p: Annotated[float | None, Field(ge=0, le=1)] = None
    repeat_penalty: Annotated[float | None, Field(gt=0, le=100)] = None
    repeat_last_n: Annotated[int | None, Field(ge=-1, le=INT32_MAX)] = None
    """Tokens; -1 is the whole context, 0 none."""
    presence_penalty: Annotated[float | None, Field(ge=-100, le=100)] = None
    frequency_penalty: Annotated[float | None, Field(ge=-100, le=100)] = None
    mirostat: Annotated[int | None, Field(ge=0, le=2)] = None
    """The version of the algorithm; 0 is off."""
    mirostat_tau: Annotated[float | None, Field(ge=0, le=100)] = None
    mirostat_eta: Annotated[float | None, Field(ge=0, le=10)] = None
    seed: Annotated[int | None, Field(ge=-(2**63), le=2**63 - 1)] = None
    """-1 draws a fresh one for each request."""
    stop: (
        Annotated[
            tuple[Annotated[str, Field(max_length=1024)], ...],
            BeforeValidator(_stop_strings),
            Field(max_length=64),
        ]
        | None
    ) = None


class Parameters(SamplingOptions):
    """How tokens are drawn where a request does not say otherwise."""

    num_predict: Annotated[int | None, Field(ge=-2, le=INT32_MAX)] = None
    """Tokens to generate at most; negative is until the context is full."""


class Blob(_Frozen):
    """One file of the weights."""

    digest: Annotated[str, Field(pattern=DIGEST)]
    size: Annotated[int, Field(ge=0, le=MAX_FILE_BYTES)]
    """Bytes."""
    filename: str
    """What the file was called where it came from."""


class Details(_Frozen):
    """What the GGUF says, so that no list of models needs to read headers."""

    architecture: str
    quantization: str
    parameter_count: Count
    context_length: Count
    embedding_length: Count
    block_count: Count
    chat_template: str | None = None
    bos_token: str | None = None
    eos_token: str | None = None
    weight_bytes: Count
    metadata: dict[str, bool | WholeNumber | float | str] = {}
    """The header's scalars but the template, by key."""

    @property
    def causal(self) -> bool:
        """A token attends to none behind it: so by default, and in what writes text."""
        return self.metadata.get(f"{self.architecture}.attention.causal") is not False


class Message(_Frozen):
    role: Literal["system", "user", "assistant"]
    content: str


class ModelfileLayer(_Frozen):
    """The topmost rung: what the Modelfile set, which edits do not touch."""

    loader: LoaderOptions = LoaderOptions()
    parameters: Parameters = Parameters()
    text: str = ""
    """The Modelfile as it was given."""


class Manifest(_Frozen):
    schema_version: Literal[1] = 1
    blobs: Annotated[tuple[Blob, ...], Field(min_length=1)]
    """The model's files, in order of the splits."""
    details: Details
    loader: LoaderOptions = LoaderOptions()
    parameters: Parameters = Parameters()
    system: str | None = None
    template: str | None = None
    """Jinja; stands in for the GGUF's own."""
    messages: tuple[Message, ...] = ()
    license: tuple[str, ...] = ()
    modelfile: ModelfileLayer | None = None
    created_at: Instant
    modified_at: Instant
    parent_model: str | None = None


def write_manifest(manifest: Manifest) -> str:
    """The manifest as it is stored: JSON for people too, unset options left out."""
    return manifest.model_dump_json(indent=2, exclude_none=True) + "\n"


def read_manifest(text: str | bytes, source: str = "manifest") -> tuple[Manifest, list[str]]:
    """A stored manifest and warnings about what in it was ignored. Files are edited by hand:
    an option that is unknown or ill-typed is as if it were not there. Raises InvalidManifest,
    which names the source, where no model is left to serve."""
    stored = _json_object(text, source)
    warnings: list[str] = []
    stored = _without_unknown(Manifest, stored, "", warnings)
    _keep_usable(stored, "loader", LoaderOptions, "loader.", warnings)
    _keep_usable(stored, "parameters", Parameters, "parameters.", warnings)
    layer = stored.get("modelfile")
    if isinstance(layer, dict):
        layer = dict(layer)
        _keep_usable(layer, "loader", LoaderOptions, "modelfile.loader.", warnings)
        _keep_usable(layer, "parameters", Parameters, "modelfile.parameters.", warnings)
        stored["modelfile"] = layer
    try:
        manifest = Manifest.model_validate_json(json.dumps(stored))
    except ValidationError as error:
        raise InvalidManifest(source, _first_fault(error)) from None
    return manifest, [f"{source}: {warning}" for warning in warnings]


def explain(error: ValidationError) -> str:
    """Pydantic's first complaint in words: what is wanted and what was given."""
    first = error.errors(include_url=False, include_context=False)[0]
    wanted = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return f"should be {wanted}, not {first['input']!r:.100}"


def _first_fault(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    return f"{'.'.join(str(part) for part in first['loc'])}: {explain(error)}"


def _json_object(text: str | bytes, source: str) -> dict[str, Any]:
    if len(text) > MAX_MANIFEST_BYTES:
        raise InvalidManifest(source, f"has {len(text):,} bytes, at most {MAX_MANIFEST_BYTES:,}")
    try:
        stored = json.loads(text)
    except RecursionError:
        raise InvalidManifest(source, "is nested too deeply") from None
    except ValueError as error:  # not JSON, or not UTF-8
        raise InvalidManifest(source, f"is not JSON: {error}") from None
    if not isinstance(stored, dict):
        raise InvalidManifest(source, "is not a JSON object")
    return stored


def _without_unknown(
    model: type[BaseModel], given: Mapping[str, Any], prefix: str, warnings: list[str]
) -> dict[str, Any]:
    for key in given:
        if key not in model.model_fields:
            warnings.append(f"unknown key {prefix + key!r:.200} is ignored")
    return {key: value for key, value in given.items() if key in model.model_fields}


_Options = TypeVar("_Options", LoaderOptions, Parameters)


def _keep_usable(
    holder: dict[str, Any], key: str, model: type[_Options], prefix: str, warnings: list[str]
) -> None:
    """Drop from holder[key] each option that the model does not take."""
    given = holder.get(key, {})
    if not isinstance(given, dict):
        warnings.append(f"{prefix[:-1]} is not an object and is ignored")
        given = {}
    usable = {}
    for option, value in _without_unknown(model, given, prefix, warnings).items():
        try:
            model.model_validate({option: value})
            usable[option] = value
        except ValidationError as error:
            warnings.append(f"{prefix}{option} {explain(error)}; it is ignored")
    holder[key] = usable
