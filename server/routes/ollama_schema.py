"""Bodies of the Ollama routes."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, model_validator

from server.durations import ALLOWED, parse_keep_alive
from server.errors import BadRequest
from server.sampling import SamplingFields
from server.schema import Schema


def _keep_alive(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"allowed: {ALLOWED}")
    return parse_keep_alive(value)


KeepAlive = Annotated[float | None, PlainValidator(_keep_alive)]


class Options(SamplingFields):
    """Sampling of one request.

    Loader options that Ollama's clients send along (num_ctx, num_gpu, num_thread, …) are
    ignored: they would reload the model for everyone. They belong to the manifest.
    """

    num_predict: int | None = Field(default=None, ge=-2, le=2**31 - 1)
    """Negative is until the context is full."""


class Named(Schema):
    """Older clients say name, newer ones model."""

    model: str | None = None
    name: str | None = None

    @property
    def model_name(self) -> str:
        name = self.model or self.name
        if not name:
            raise BadRequest("model: a name is required", param="model")
        return name


class Generating(Named):
    stream: bool | None = True
    options: Options = Options()
    keep_alive: KeepAlive = None
    format: Any = None
    tools: Any = None
    think: Any = None

    @model_validator(mode="after")
    def refuse_unsupported(self) -> Self:
        """Raises BadRequest naming the first field that asks for what is not there."""
        if self.format not in (None, ""):
            raise BadRequest("format is not supported", param="format")
        if self.tools not in (None, []):
            raise BadRequest("tools is not supported", param="tools")
        if self.think not in (None, False):
            raise BadRequest("think is not supported", param="think")
        extra = self.model_extra or {}
        for field in ("images", "suffix"):
            if extra.get(field) not in (None, [], ""):
                raise BadRequest(f"{field} is not supported", param=field)
        return self


class GenerateRequest(Generating):
    prompt: str = ""
    system: str | None = None
    template: str | None = None
    """Jinja; stands in for the model's own in this request."""
    raw: bool | None = False
    """The prompt is taken as it is: no template, no system."""


class OllamaMessage(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)

    role: Literal["system", "user", "assistant"]
    content: str = ""
    images: Any = None


class ChatRequest(Generating):
    messages: list[OllamaMessage] = Field(default_factory=list, max_length=10_000)

    @model_validator(mode="after")
    def refuse_images(self) -> Self:
        if any(message.images for message in self.messages):
            raise BadRequest("images is not supported", param="messages")
        return self


class CopyRequest(Schema):
    source: str
    destination: str


class PullRequest(Named):
    from_: str | None = Field(default=None, alias="from")
    """Absolute path of a GGUF on the daemon's machine."""
    stream: bool | None = True


class CreateRequest(Named):
    """A Modelfile's text, or its parts as newer clients send them."""

    modelfile: str | None = None
    from_: str | None = Field(default=None, alias="from")
    parameters: dict[str, Any] = Field(default_factory=dict)
    system: str | None = None
    template: str | None = None
    messages: list[OllamaMessage] = Field(default_factory=list)
    license: str | list[str] | None = None
    base_dir: str | None = None
    """Absolute path of the folder that a relative FROM starts in."""
    stream: bool | None = True


class EditRequest(Schema):
    """Strict: an unknown key is refused where it would be kept aside elsewhere."""

    model: str
    loader: dict[str, Any] = Field(default_factory=dict)
    parameters: dict[str, Any] = Field(default_factory=dict)
    system: str | None = None
    template: str | None = None
    reload: bool = False
