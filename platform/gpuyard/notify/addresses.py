"""Where endpoints may be: a person who gives an address must not reach into the network that we stand in.

The name is resolved once for each sending, every address it stands for is judged, and the connection goes to an
address that was judged: a name that answers differently the second time gains nothing.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from django.conf import settings
from django.utils.translation import gettext as _

from gpuyard.core.errors import Invalid

LONGEST = 500
_PORTS = {"https": 443, "http": 80}
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class Place:
    """An address taken apart. `target`: path and query."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def is_plain(self) -> bool:
        return self.scheme == "http"


def place_parse(url: str) -> Place:
    """Takes a URL apart; `Invalid` if it is none that we send to."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme, 0)
        host = (
            (parts.hostname or "")
            .encode("idna" if not (parts.hostname or "").isascii() else "ascii")
            .decode()
        )
    except (ValueError, UnicodeError):
        raise _refused("url_invalid", _("This is no address.")) from None
    if parts.scheme not in _PORTS or not host or len(url) > LONGEST or not url.isprintable() or " " in url:
        raise _refused("url_invalid", _("This is no address."))
    if parts.username is not None or parts.password is not None:
        raise _refused("url_credentials", _("The address carries a name or a password."))
    if not url.isascii():
        raise _refused("url_invalid", _("This is no address."))
    target = parts.path or "/"
    return Place(parts.scheme, host, port, f"{target}?{parts.query}" if parts.query else target)


def addresses_of(place: Place) -> list[Address]:
    """The addresses that the name stands for; `Invalid` if it has none, or one that we do not send to."""
    try:
        found = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise _refused("host_unknown", _("The name of the host is not known.")) from None
    addresses = [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
    for address in addresses:
        _address_check(place, address)
    return list(dict.fromkeys(addresses))


def _address_check(place: Place, address: Address) -> None:
    plain = getattr(address, "ipv4_mapped", None) or address
    if any(plain in network for network in _allowed()):
        return
    if place.is_plain:
        raise _refused("https_only", _("The address does not begin with https."))
    if not plain.is_global or plain.is_multicast:
        raise _refused("address_private", _("The host is inside a private network."))


def _allowed() -> list[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    return [ipaddress.ip_network(text, strict=False) for text in settings.GPUYARD_WEBHOOK_NETWORKS]


def _refused(code: str, message: str) -> Invalid:
    remedy = _("Give an https address of a public host; an admin can allow a network of yours.")
    return Invalid(code, message, field="url", remedy=remedy)
