"""Addresses and secrets of endpoints are stored sealed, under a key made from `SECRET_KEY`.

Whoever reads a dump of the database learns none of them. After a change of `SECRET_KEY`, the old one in
`SECRET_KEY_FALLBACKS` still opens what it sealed.
"""

from __future__ import annotations

import base64
import hashlib

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings


def sealed(text: str) -> str:
    """The text, readable with our key only."""
    return _fernet().encrypt(text.encode()).decode()


def opened(token: str) -> str:
    """What was sealed; `ValueError` if the key is another one."""
    try:
        return _fernet().decrypt(token.encode()).decode()
    except InvalidToken:
        raise ValueError("sealed under another SECRET_KEY") from None


def _fernet() -> MultiFernet:
    keys = [str(key) for key in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)]
    return MultiFernet([Fernet(_derived(key)) for key in keys])


def _derived(secret_key: str) -> bytes:
    return base64.urlsafe_b64encode(hashlib.sha256(b"gpuyard.notify.vault:" + secret_key.encode()).digest())
