"""Live parts of a page: the same view and context, one named partial, and 204 when nothing changed.

A part carries its version in a hidden field (`{% live_version %}`) that its poll sends back. Without
JavaScript nothing polls and the page is whole.
"""

import hashlib
import re
from collections.abc import Collection
from datetime import datetime
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.cache import patch_cache_control, patch_vary_headers

UNVERSIONED = 'name="v" value="0"'
AS_OF = re.compile(r'<span class="asof" data-asof.*?</span>', re.DOTALL)


def respond(
    request: HttpRequest,
    template: str,
    context: dict[str, Any],
    version: str | None = None,
    *,
    parts: Collection[str] = ("live",),
    as_of: datetime | None = None,
) -> HttpResponse:
    """The whole page, or with `?part=` one of its parts; 204 if the reader has that version already.

    Give `version` where it is known before rendering; else the rendered part is hashed, without its stamps.
    """
    query = request.GET.copy()
    part, seen = query.pop("part", [""])[-1], query.pop("v", [""])[-1]
    request.GET = query  # type: ignore[assignment]  # links inside a part are built from the page's own query
    context = {**context, "live_version": version or "0"}
    if not part:
        return _finish(render(request, template, context), as_of)
    if part not in parts:
        raise Http404(f"This page has no part {part!r}.")
    if version and seen == version:
        return _finish(HttpResponse(status=204), as_of)
    html = render_to_string(f"{template}#{part}", context, request)
    current = version or version_of(html)
    if seen == current:
        return _finish(HttpResponse(status=204), as_of)
    return _finish(HttpResponse(html.replace(UNVERSIONED, f'name="v" value="{current}"')), as_of)


def version_of(html: str) -> str:
    return hashlib.blake2s(AS_OF.sub("", html).encode(), digest_size=8).hexdigest()


def _finish(response: HttpResponse, as_of: datetime | None) -> HttpResponse:
    patch_vary_headers(response, ["HX-Request", "Cookie"])
    patch_cache_control(response, private=True, no_cache=True)
    if as_of is not None:
        # A 204 has no body, and the stamp must still move: yard.js writes it from here.
        response["Yard-As-Of"] = timezone.localtime(as_of).strftime("%H:%M:%S")
    return response
