"""Live parts: the whole page, one part of it, and 204 when nothing changed."""

import re
from pathlib import Path

import pytest
from django.http import Http404
from django.template import engines
from django.template.backends.django import DjangoTemplates
from django.test import RequestFactory

from gpuyard.web import live

PAGE = (
    "{% load yard partials %}<h1>page</h1>"
    "{% partialdef live inline %}{% live_version %}<p>{{ fact }}</p>{% querystring %}{% endpartialdef %}"
)


@pytest.fixture(autouse=True)
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "page.html").write_text(PAGE)
    backend = engines["django"]
    assert isinstance(backend, DjangoTemplates)
    monkeypatch.setattr(backend.engine, "dirs", [tmp_path])
    for loader in backend.engine.template_loaders:
        loader.reset()


def ask(query: str, fact: str = "one", version: str | None = None) -> tuple[int, str]:
    answer = live.respond(RequestFactory().get(f"/page?{query}"), "page.html", {"fact": fact}, version)
    return answer.status_code, answer.content.decode()


def version_in(html: str) -> str:
    found = re.search(r'name="v" value="(\w+)"', html)
    assert found
    return found[1]


def test_without_a_part_the_whole_page_comes() -> None:
    status, html = ask("q=x")
    assert status == 200
    assert "<h1>page</h1>" in html


def test_a_part_comes_alone_and_links_from_it_keep_the_pages_query() -> None:
    _status, html = ask("q=x&part=live&v=0")
    assert "<h1>" not in html
    assert html.endswith("?q=x")


def test_nothing_changed_is_204() -> None:
    _status, html = ask("part=live")
    assert ask(f"part=live&v={version_in(html)}") == (204, "")


def test_a_change_comes_with_a_new_version() -> None:
    _status, html = ask("part=live")
    status, changed = ask(f"part=live&v={version_in(html)}", fact="two")
    assert status == 200
    assert version_in(changed) != version_in(html)


def test_a_version_known_beforehand_is_used_as_it_is() -> None:
    _status, html = ask("", version="7")
    assert version_in(html) == "7"
    assert ask("part=live&v=7", fact="two", version="7") == (204, "")


def test_a_part_that_the_page_does_not_have_is_not_found() -> None:
    with pytest.raises(Http404):
        ask("part=secrets")


def test_the_stamp_does_not_count_as_a_change() -> None:
    stamped = '<p>1</p><span class="asof" data-asof><time title="x">10:42:0{}</time></span>'
    assert live.version_of(stamped.format(1)) == live.version_of(stamped.format(2))
