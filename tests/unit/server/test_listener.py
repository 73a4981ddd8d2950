"""The listening socket and the errors of binding it."""

import socket

import pytest

from server.listener import ListenError, listen, url_of


def test_port_0_takes_a_free_port_and_the_url_names_it() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert url_of(listener) == f"http://127.0.0.1:{port}"
        with socket.create_connection(("127.0.0.1", port), timeout=5.0):
            pass


def test_every_address_is_reached_through_loopback() -> None:
    with listen("0.0.0.0", 0) as listener:
        assert url_of(listener).startswith("http://127.0.0.1:")


def test_a_port_in_use_is_told_with_the_way_out() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ListenError, match=rf"port {port} on 127\.0\.0\.1 is in use: .* --port 0"):
            listen("127.0.0.1", port)


def test_an_address_of_another_machine_is_told() -> None:
    with pytest.raises(ListenError, match=r"--host 192\.0\.2\.1 is no address of this machine"):
        listen("192.0.2.1", 0)


def test_what_is_no_address_is_told() -> None:
    name = "a" * 64  # no label of a host name is that long, so that no resolver is asked
    with pytest.raises(ListenError, match=f"--host {name} is no address"):
        listen(name, 0)
