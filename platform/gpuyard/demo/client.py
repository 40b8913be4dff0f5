"""The demo's users at work: each call is a REST request with that user's own token."""

from __future__ import annotations

from typing import Any

import httpx

_TIMEOUT_S = 20.0


class ApiError(Exception):
    """The API refused; the message is its own."""


class Api:
    """The REST API as one user sees it."""

    def __init__(self, url: str, token: str) -> None:
        self._client = httpx.Client(
            base_url=f"{url}/api/v1/", headers={"Authorization": f"Bearer {token}"}, timeout=_TIMEOUT_S
        )

    def get(self, path: str, **query: Any) -> Any:
        return self._answer(self._client.get(path, params=query))

    def post(self, path: str, body: dict[str, Any], *, key: str = "") -> Any:
        """`key`: an Idempotency-Key, so that a repeated request changes nothing."""
        headers = {"Idempotency-Key": key} if key else {}
        return self._answer(self._client.post(path, json=body, headers=headers))

    def pages(self, path: str, **query: Any) -> list[Any]:
        """All results of a list, page by page."""
        page = self.get(path, **query)
        results = list(page["results"])
        while page["next"]:
            page = self._answer(self._client.get(page["next"]))
            results += page["results"]
        return results

    def close(self) -> None:
        self._client.close()

    def _answer(self, response: httpx.Response) -> Any:
        if response.is_success:
            return response.json()
        raise ApiError(
            f"{response.request.method} {response.request.url}: {response.status_code} {response.text}"
        )
