"""How much a client may ask for, and how long it may take."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Of each worker; `rate` is shared out among them. Seconds are those of a clock on the wall."""

    body: int = 2**20  # bytes of a request or a message
    length: int = 512  # elements of a sequence
    depth: int = 16  # lists and objects in one another
    waiting: int = 256  # questions asked and not yet answered
    streams: int = 64  # open at once
    connections: int = 512  # open at once, streams among them
    connections_each: int = 128  # of them from one address; 0: any number
    rate: float = 500.0  # requests and messages a second from one address, in the long run; 0: any number
    burst: int = 1000  # of them at once, after a rest
    reading: float = 30.0  # seconds for a request to come in: its head, and then its body
    writing: float = 30.0  # seconds for a client to take what it was sent
    idle: float = 60.0  # seconds without a request or a message before a connection is closed
    lingering: float = 1.0  # seconds after SIGTERM in which /ready says no before the port is closed
    closing: float = 10.0  # seconds for open questions after that
