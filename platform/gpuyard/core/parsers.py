"""JSON as it is sent to us: bounded in size and depth, so that no body can exhaust memory or the stack.

DRF reads a JSON body past `DATA_UPLOAD_MAX_MEMORY_SIZE`, and a few kilobytes of `[` end in a RecursionError.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import IO, Any

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.utils.translation import gettext as _
from rest_framework.exceptions import ParseError
from rest_framework.parsers import JSONParser

MAX_DEPTH = 40


class BoundedJSONParser(JSONParser):
    """The only parser of the API and of the agents' endpoint."""

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        body = stream.read(limit + 1)
        if len(body) > limit:
            raise RequestDataTooBig
        try:
            data = super().parse(BytesIO(body), media_type, parser_context)
        except RecursionError:
            raise _too_deep() from None
        if _depth_exceeds(data, MAX_DEPTH):
            raise _too_deep()
        return data


def _too_deep() -> ParseError:
    return ParseError(_("The JSON document is nested too deeply."))


def _depth_exceeds(data: Any, limit: int) -> bool:
    """Level by level, not by recursion."""
    level = [data]
    for _depth in range(limit + 1):
        level = [
            inner
            for value in level
            if isinstance(value, dict | list)
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return False
    return True
