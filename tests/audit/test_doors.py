"""An event says through which door its act came."""

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from gpuyard.audit.doors import door_middleware, door_now
from gpuyard.audit.services import Subject, event_draft


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/api/v1/workloads", "api"),
        ("/agent/v1/sync", "agent"),
        ("/workloads/new", "web"),
        ("/apiary", "web"),
    ],
)
def test_the_path_of_the_request_decides(path: str, expected: str) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        event = event_draft(company_id=None, actor=None, action="test.act", subject=Subject("test", None))
        return HttpResponse(event.source)

    answer = door_middleware(view)(RequestFactory().post(path))

    assert answer.content.decode() == expected
    assert door_now() == "system"


def test_a_service_that_knows_better_is_believed() -> None:
    event = event_draft(
        company_id=None, actor=None, action="test.act", subject=Subject("test", None), source="command"
    )
    assert event.source == "command"
