"""One POST to an address from outside: no redirects, no proxies, a hard end, and nothing of the answer is kept."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Mapping
from threading import Timer

from gpuyard.notify.addresses import Address, Place, addresses_of

_CONNECT_S = 5.0
_ALL_S = 10.0
_BODY_MOST = 64 * 1024


class PostFailed(Exception):
    """It could not be delivered. The message is for the log: never an address, never what was answered."""

    def __init__(self, words: str, status: int | None = None) -> None:
        self.words = words
        self.status = status
        super().__init__(words)


def post(place: Place, body: bytes, headers: Mapping[str, str]) -> int:
    """Sends it and returns the status; `PostFailed` for all but a 2xx. `Invalid` if the host may not be reached."""
    if len(body) > _BODY_MOST:
        raise PostFailed("larger than 64 KiB")
    try:
        status = _exchange(place, addresses_of(place), body, headers)
    except TimeoutError:
        raise PostFailed("no answer in time") from None
    except ssl.SSLError as error:
        raise PostFailed(f"TLS: {error.reason or 'failed'}"[:200]) from None
    except (OSError, http.client.HTTPException) as error:
        raise PostFailed(type(error).__name__) from None
    if not 200 <= status < 300:
        raise PostFailed(f"answered {status}", status)
    return status


def _exchange(place: Place, addresses: list[Address], body: bytes, headers: Mapping[str, str]) -> int:
    connection = http.client.HTTPConnection(place.host, place.port)
    connection.sock = wire = _connect(place, addresses)
    # Each read has a time-out of its own; an answer that drips in byte by byte is cut off by this.
    cut = Timer(_ALL_S, _cut, [wire])
    cut.daemon = True
    cut.start()
    try:
        connection.request("POST", place.target, body, dict(headers))
        return connection.getresponse().status
    finally:
        cut.cancel()
        connection.close()


def _connect(place: Place, addresses: list[Address]) -> socket.socket:
    """To an address that was judged, never to the name again; the certificate has to be the name's."""
    error: OSError = OSError("no address")
    for address in addresses[:2]:
        try:
            wire = socket.create_connection((str(address), place.port), timeout=_CONNECT_S)
        except OSError as exc:
            error = exc
            continue
        if place.is_plain:
            return wire
        try:
            return ssl.create_default_context().wrap_socket(wire, server_hostname=place.host)
        except OSError:
            wire.close()
            raise
    raise error


def _cut(wire: socket.socket) -> None:
    try:
        wire.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it has ended already
