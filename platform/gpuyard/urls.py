from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, URLResolver, include, path


def healthz(request: HttpRequest) -> HttpResponse:
    """The web server answers; says nothing about the database."""
    return HttpResponse("ok\n", content_type="text/plain")


urlpatterns: list[URLPattern | URLResolver] = [
    path("healthz", healthz, name="healthz"),
    path("agent/v1/", include("scheduling.agents.urls")),
    path("api/v1/", include("gpuyard.api.urls")),
    path("", include("gpuyard.web.identity.urls")),
    path("", include("gpuyard.web.urls")),
]

handler500 = "gpuyard.api.views.fault"
