"""What the schemas of all request bodies have in common; knows no HTTP."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Schema(BaseModel):
    """A request body: no coercion between types, unknown keys are kept aside."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, frozen=True)
