"""The root of the API, and the answer where there is nothing."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import URLPattern, URLResolver
from django.utils.translation import gettext as _
from django.views.defaults import server_error
from drf_spectacular.utils import extend_schema
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpuyard.core.errors import DomainError, NotFound
from gpuyard.core.problems import CONTENT_TYPE, problem_data

_FOR_PROGRAMS = ("/api/", "/agent/")


class RootView(APIView):
    """Where everything else is."""

    permission_classes = [AllowAny]

    @extend_schema(
        operation_id="root",
        responses={
            200: {
                "type": "object",
                "required": ["version", "endpoints"],
                "properties": {
                    "version": {"type": "string"},
                    "endpoints": {"type": "object", "additionalProperties": {"type": "string"}},
                },
            }
        },
    )
    def get(self, request: Request) -> Response:
        patterns = import_module("gpuyard.api.urls").urlpatterns
        endpoints = {
            route: request.build_absolute_uri(route) for route in sorted(set(_routes(patterns))) if route
        }
        return Response({"version": "1", "endpoints": endpoints})


@extend_schema(exclude=True)
class NothingView(APIView):
    """An unknown path: a problem document, where Django would answer in HTML."""

    authentication_classes = []
    permission_classes = [AllowAny]

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        raise NotFound()


def fault(request: HttpRequest) -> HttpResponse:
    """The project's `handler500`: programs are told of a fault of ours in JSON, people on a page."""
    if not request.path.startswith(_FOR_PROGRAMS):
        return server_error(request)
    error = DomainError(
        "internal",
        _("Something broke on our side."),
        remedy=_("Try again in a minute. If it happens again, tell a platform admin when it did."),
        status=500,
    )
    return JsonResponse(problem_data(error, instance=request.path), status=500, content_type=CONTENT_TYPE)


def _routes(patterns: Iterable[URLPattern | URLResolver], prefix: str = "") -> Iterable[str]:
    """The paths that need no id, as they stand in the URL table."""
    for one in patterns:
        route = prefix + str(one.pattern)
        if isinstance(one, URLResolver):
            yield from _routes(one.url_patterns, route)
        elif not set(route) & set("<^$"):
            yield route
