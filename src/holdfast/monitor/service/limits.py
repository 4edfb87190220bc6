"""Limits on the size, number and duration of requests."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits of each worker; `rate` is divided among them.

    Defaults are chosen by hand. Seconds are wall-clock time.
    """

    body: int = 2**20  # bytes of a request or a message
    length: int = 512  # elements of a sequence
    depth: int = 16  # nesting depth of lists and objects
    waiting: int = 256  # unanswered requests
    streams: int = 64  # open streams
    connections: int = 512  # open connections, streams included
    connections_each: int = 128  # open connections from one address; 0: no limit
    rate: float = 500.0  # requests and messages per second from one address, on average; 0: no limit
    burst: int = 1000  # requests and messages at once, after a pause
    reading: float = 30.0  # seconds to receive the head of a request, and again for its body
    writing: float = 30.0  # seconds for a client to receive an answer
    idle: float = 60.0  # seconds without a request or a message until a connection is closed
    lingering: float = 1.0  # seconds after SIGTERM in which /ready answers 503 before the port is closed
    closing: float = 10.0  # seconds for open requests after that
