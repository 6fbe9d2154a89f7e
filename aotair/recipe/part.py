"""What the parts of a recipe have in common: keys and types are strict, and nothing changes them later."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Size = Annotated[int, Field(ge=1, le=1 << 40)]
FileName = Annotated[str, Field(min_length=1)]


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
