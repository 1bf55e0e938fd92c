"""The base of every part of the settings: unknown keys are refused, values never change."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Seconds = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]


class Section(BaseModel):
    """A part of the settings: unknown keys are refused, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True)
