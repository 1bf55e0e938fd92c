"""The base of every part of the settings: unknown keys are refused, values never change."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A part of the settings: unknown keys are refused, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True)
