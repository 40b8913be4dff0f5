"""`/api/v1/`: each app brings its own routes. No trailing slashes."""

from django.urls import URLPattern, URLResolver, path, re_path
from drf_spectacular.views import SpectacularJSONAPIView

from gpuyard.api.views import NothingView, RootView

urlpatterns: list[URLPattern | URLResolver] = [
    path("", RootView.as_view(), name="api-root"),
    path("schema", SpectacularJSONAPIView.as_view(), name="api-schema"),
    # the last one: everything that no route above takes
    re_path(r"^.*$", NothingView.as_view(), name="api-nothing"),
]
