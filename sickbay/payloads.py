"""Messages as JSON by pydantic, each shape's validator built once per process.

Temporal makes a payload converter for every workflow it runs, and the library's own keeps its
validators in that converter: a burst of repairs would build the same ones again for each.
"""

import functools
from typing import Any

from pydantic import TypeAdapter
from temporalio.api.common.v1 import Payload
from temporalio.contrib.pydantic import PydanticJSONPlainPayloadConverter
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    DefaultPayloadConverter,
    JSONPlainPayloadConverter,
)

SHAPES_KEPT = 1024


@functools.lru_cache(maxsize=SHAPES_KEPT)
def _validator(shape: Any) -> TypeAdapter[Any]:
    return TypeAdapter(shape)


class _SharedJson(PydanticJSONPlainPayloadConverter):
    def from_payload(self, payload: Payload, type_hint: type | None = None) -> Any:
        try:
            hash(type_hint)
        except TypeError:
            return super().from_payload(payload, type_hint)
        return _validator(Any if type_hint is None else type_hint).validate_json(payload.data)


class SharedPayloadConverter(CompositePayloadConverter):
    """The default converters, with JSON read by shared validators."""

    def __init__(self) -> None:
        super().__init__(
            *(
                _SharedJson() if isinstance(one, JSONPlainPayloadConverter) else one
                for one in DefaultPayloadConverter.default_encoding_payload_converters
            )
        )


shared_data_converter = DataConverter(payload_converter_class=SharedPayloadConverter)
