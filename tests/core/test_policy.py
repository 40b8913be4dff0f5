import pytest

from gpuyard.core.errors import Invalid
from gpuyard.core.policy import PolicyDocument, document_dump, document_parse


class Rule(PolicyDocument):
    name: str
    max_gpus: int = 8


class Document(PolicyDocument):
    rules: tuple[Rule, ...]


def test_a_document_is_read_and_written_back() -> None:
    data = {"rules": [{"name": "small", "max_gpus": 2}]}
    assert document_dump(document_parse(Document, data)) == data


def test_every_wrong_field_is_named_with_a_remedy() -> None:
    data = {"rules": [{"max_gpus": "many"}, {"name": "x", "max_gpu": 1}]}
    with pytest.raises(Invalid) as caught:
        document_parse(Document, data, field="document")
    assert caught.value.code == "document_invalid"
    assert {one.field: one.code for one in caught.value.errors} == {
        "document.rules.0.name": "missing",
        "document.rules.0.max_gpus": "int_parsing",
        "document.rules.1.max_gpu": "extra_forbidden",
    }
    assert all(one.remedy for one in caught.value.errors)
