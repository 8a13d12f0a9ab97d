"""Ports for processes of a test that meet at an address."""

import secrets
import socket

LOWEST, HIGHEST = 20_000, 32_000  # below the ports that Linux gives to outgoing connections, 32,768 to 60,999


def free_port() -> int:
    """A port that no process uses, outside the range of outgoing connections, from which one could take it."""
    for _ in range(100):
        port = LOWEST + secrets.randbelow(HIGHEST - LOWEST)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
    raise OSError(f"100 ports from {LOWEST} to {HIGHEST} are in use")
