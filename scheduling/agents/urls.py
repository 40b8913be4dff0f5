"""`/agent/v1/`. No trailing slashes."""

from django.urls import URLPattern, path

from scheduling.agents import views

urlpatterns: list[URLPattern] = [
    path("join", views.join, name="agent-join"),
    path("sync", views.sync, name="agent-sync"),
]
