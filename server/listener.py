"""The listening socket, bound before anything slow happens."""

from __future__ import annotations

import errno
import socket

_BACKLOG = 2048


class ListenError(Exception):
    """The address cannot be listened on; the message says why and what to do."""


def listen(host: str, port: int) -> socket.socket:
    """A bound, listening, non-blocking TCP socket.

    Args:
        port: 0 takes a free one.

    Raises:
        ListenError: in use, not ours, not allowed, or no such host.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise ListenError(f"--host {host} is no address of this machine: {error}") from error
    try:
        # A restart may take the port while connections of the last run are still in TIME_WAIT.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ListenError(_explain(host, port, error)) from error
    listener.setblocking(False)
    return listener


def url_of(listener: socket.socket) -> str:
    """The URL at which a client on this machine reaches the socket."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # every address: name one that works here
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _explain(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use: choose another with --port, or --port 0 for a free one"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} needs privileges: choose one above 1023 with --port"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host} is no address of this machine: 127.0.0.1 is local, 0.0.0.0 is every address"
    return f"{host}:{port} cannot be listened on: {error.strerror}"
