from typing import Any

import pytest
from django.db.models import F
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.test import APIRequestFactory
from rest_framework.views import APIView

from gpuyard.core.pagination import CursorPages
from tenants.models import Team
from tests import factories

pytestmark = pytest.mark.django_db


class Teams(APIView):
    authentication_classes = []
    permission_classes = [AllowAny]

    def get(self, request: Request) -> Response:
        pages = CursorPages()
        page = pages.paginate_queryset(Team.objects.all(), request, self)
        return pages.get_paginated_response([team.name for team in page])


def get(url: str = "/teams", **query: Any) -> Response:
    response = Teams.as_view()(APIRequestFactory().get(url, query))
    assert isinstance(response, Response)
    return response


def all_pages(page_size: int) -> list[str]:
    names: list[str] = []
    data = get(page_size=page_size).data
    while True:
        names += data["results"]
        if data["next"] is None:
            return names
        assert len(data["results"]) == page_size
        data = get(data["next"]).data


def test_the_newest_comes_first_and_no_row_is_lost_between_pages() -> None:
    names = [factories.company().name for _ in range(7)]
    assert all_pages(3) == names[::-1]


def test_rows_of_one_instant_are_neither_lost_nor_repeated() -> None:
    names = {factories.company().name for _ in range(7)}
    oldest = Team.objects.order_by("created_at")[:1].values("created_at")
    Team.objects.update(created_at=oldest)
    pages = all_pages(2)
    assert len(pages) == 7
    assert set(pages) == names


def test_a_row_that_comes_in_between_moves_nothing() -> None:
    names = [factories.company().name for _ in range(4)]
    first = get(page_size=2).data
    factories.company()
    assert first["results"] + get(first["next"]).data["results"] == names[::-1]


def test_the_last_page_has_no_next() -> None:
    factories.company()
    assert get(page_size=1).data["next"] is None


@pytest.mark.parametrize("size", ["0", "-1", "201", "x", "1.5", "", "٣", "9" * 5000])
def test_a_page_size_out_of_bounds_is_refused(size: str) -> None:
    response = get(page_size=size)
    assert response.status_code == 400
    assert response.data["errors"][0]["field"] == "page_size"


@pytest.mark.parametrize(
    "cursor", ["x", "é", "W10", "WzEsIDJd", "bnVsbA", "WyIyMDI2LTAxLTAxIiwieCJd", "\0", "W1tb" * 3000]
)
def test_a_cursor_that_is_none_of_ours_is_refused(cursor: str) -> None:
    response = get(cursor=cursor)
    assert response.status_code == 400
    assert response.data["errors"][0]["field"] == "cursor"


def test_the_querysets_own_order_is_replaced() -> None:
    names = [factories.company().name for _ in range(3)]
    request = Request(APIRequestFactory().get("/teams"))
    page = CursorPages().paginate_queryset(Team.objects.order_by(F("name").desc()), request)
    assert [team.name for team in page] == names[::-1]
