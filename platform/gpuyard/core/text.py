"""Text from outside: what PostgreSQL could not store is refused with a field and a remedy, before it gets there."""

from __future__ import annotations

import re
from typing import Any

from django.utils.translation import gettext as _

from gpuyard.core.errors import Invalid


def text_check(value: Any, *, field: str, longest: int, is_optional: bool = False) -> str:
    """The text without blanks around it; `Invalid` if it is empty (unless optional), too long or not storable."""
    if not isinstance(value, str):
        raise Invalid("text_wanted", _("This is no text."), field=field, remedy=_("Give a text."))
    stripped = value.strip()
    if not is_storable(stripped):
        raise Invalid(
            "null_characters_not_allowed",
            _("The text contains NUL characters or broken Unicode."),
            field=field,
            remedy=_("Remove the NUL characters, and send well-formed Unicode."),
        )
    if not is_plain(stripped):
        raise Invalid(
            "control_characters_not_allowed",
            _("The text contains control characters."),
            field=field,
            remedy=_("Remove the characters that nobody sees, such as escapes and changes of direction."),
        )
    if not stripped and not is_optional:
        raise Invalid("blank", _("This is empty."), field=field, remedy=_("Give a value that is not empty."))
    if len(stripped) > longest:
        raise Invalid(
            "max_length",
            _("The text is %(have)s characters long.") % {"have": len(stripped)},
            field=field,
            remedy=_("Give at most %(most)s characters.") % {"most": longest},
        )
    return stripped


def is_storable(text: str) -> bool:
    """PostgreSQL's text has neither NUL nor half surrogates."""
    return "\x00" not in text and not any("\ud800" <= char <= "\udfff" for char in text)


# Line breaks and tabs are text; escapes would act on terminals, and a change of direction shows another name.
_UNSEEN = re.compile("[\x01-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def is_plain(text: str) -> bool:
    """What is read is what is stored."""
    return _UNSEEN.search(text) is None


def text_shortened(text: str, longest: int) -> str:
    """Cut out of the middle: what it is about stands first, why it went wrong last."""
    if len(text) <= longest:
        return text
    kept = longest - 1
    return f"{text[: kept // 2]}…{text[len(text) - (kept - kept // 2) :]}"


def text_for_lookup(value: Any) -> str:
    """A text that can be compared with stored ones: what cannot be stored becomes something that nothing equals."""
    return str(value).replace("\x00", "?").encode("utf-8", "replace").decode()
