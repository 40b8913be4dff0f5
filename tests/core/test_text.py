"""Text from outside."""

import pytest

from gpuyard.core.errors import Invalid
from gpuyard.core.text import text_check


@pytest.mark.parametrize("text", ["a\x1b[31mred", "safe\u202egpj.exe", "bell\x07", "\x9b1m", "\u2066x\u2069"])
def test_what_nobody_sees_is_refused(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        text_check(text, field="name", longest=120)
    (error,) = refused.value.errors
    assert (error.field, error.code) == ("name", "control_characters_not_allowed")
    assert error.remedy


@pytest.mark.parametrize(
    "text", ["two\nlines\tand a tab", "\u05e9\u05dc\u05d5\u05dd", "caf\u00e9 \U0001f469\u200d\U0001f4bb"]
)
def test_every_language_is_text(text: str) -> None:
    assert text_check(text, field="name", longest=120) == text
