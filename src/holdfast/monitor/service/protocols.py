"""Timeouts that uvicorn does not have: for receiving a request, and for a client to receive the answer.

uvicorn closes a connection that is idle after an answer, limits the head of a request, and counts
connections. It waits without limit for a head that arrives byte by byte, for an answer that the client does
not read, and for the rest of a body that was already answered. Its own limit on connections also refuses
probes, and one address can exhaust it. So connections are counted here.
"""

import asyncio
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.auto import AutoWebSocketsProtocol

from holdfast.monitor.service.gate import MARK
from holdfast.monitor.service.json_messages import error_body
from holdfast.monitor.service.limits import Limits
from holdfast.monitor.service.rates import network_of

# Number of connections beyond the limits that are reserved for probes; further ones are aborted.
RESERVED_CONNECTIONS = 64
RESERVED_EACH = 8  # Limit for reserved connections from one address (chosen by hand).
RESERVED_SECONDS = 2.0  # Seconds in which a reserved connection must send its request (chosen by hand).


class Connections:
    """The connections of a worker by address, and which of them are reserved for probes.

    At most `each` connections from one address and `most` in all are ordinary. A few further ones are
    reserved and may only send probes. So the service stays observable, however many connections clients keep
    open.
    """

    def __init__(self, most: int, each: int) -> None:
        """each: 0 for no limit."""
        self.most, self.each = most, each or most
        self._ordinary: dict[Any, str] = {}
        self._reserved: dict[Any, str] = {}

    def admit(self, key: Any, address: str) -> bool | None:
        """Register a connection: True: ordinary, False: reserved, None: a limit is reached."""
        own = network_of(address)
        if (
            len(self._ordinary) < self.most
            and sum(other == own for other in self._ordinary.values()) < self.each
        ):
            self._ordinary[key] = own
            return True
        if (
            len(self._reserved) < RESERVED_CONNECTIONS
            and sum(other == own for other in self._reserved.values()) < RESERVED_EACH
        ):
            self._reserved[key] = own
            return False
        return None

    def release(self, key: Any) -> None:
        self._ordinary.pop(key, None)
        self._reserved.pop(key, None)


class _Patient:
    """Disconnects a client that does not read what it was sent."""

    limits: ClassVar[Limits]
    admitted: ClassVar[Connections]
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)  # type: ignore[misc]
        transport.set_write_buffer_limits(
            1, 0
        )  # all data that the system does not accept at once counts as unread

    def pause_writing(self) -> None:
        super().pause_writing()  # type: ignore[misc]
        self._unread = self.loop.call_later(self.limits.writing, self.transport.abort)  # type: ignore[attr-defined]

    def resume_writing(self) -> None:
        super().resume_writing()  # type: ignore[misc]
        self._take_message()

    def connection_lost(self, exc: Exception | None) -> None:
        self._take_message()
        self.admitted.release(self.transport)  # type: ignore[attr-defined]
        super().connection_lost(exc)  # type: ignore[misc]

    def _take_message(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


class _Requests(_Patient, H11Protocol):
    """Aborts a connection whose request head is not complete in time."""

    _head: asyncio.TimerHandle | None = None
    _reserved = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        ordinary = self.admitted.admit(transport, self.client[0] if self.client else "")
        if ordinary is None:
            transport.abort()
            return
        self._reserved = not ordinary
        if self._reserved:
            self.app = _add_protocol_marker(self.app)
        seconds = min(self.limits.reading, RESERVED_SECONDS) if self._reserved else self.limits.reading
        self._head = self.loop.call_later(seconds, transport.abort)

    def _should_upgrade(self) -> bool:
        return not self._reserved and super()._should_upgrade()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._reserved:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Answer malformed HTTP, or a head that is too long, in the format of all errors."""
        body = error_body(msg)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        events = (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=body),
            h11.EndOfMessage(),
        )
        for event in events:
            self.transport.write(self.conn.send(event))
        self.transport.close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._whole()
            if (
                self.conn.their_state is h11.SEND_BODY
                and self.cycle is not None
                and self.cycle.response_complete
            ):
                self.transport.close()  # the request was answered, but the client keeps sending
        elif self._head is None and not self.transport.is_closing() and self.timeout_keep_alive_task is None:
            self._head = self.loop.call_later(self.limits.reading, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._whole()
        super().connection_lost(exc)

    def _whole(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None


def _add_protocol_marker(app: Any) -> Any:
    """Wrap the application so that requests over a reserved connection are marked."""

    async def marked(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, MARK: True}, receive, send)

    return marked


def protocols(limits: Limits) -> tuple[type[asyncio.Protocol], type[asyncio.Protocol]]:
    """Return protocol classes for HTTP and for streams, which share the limits on connections."""
    assert isinstance(AutoWebSocketsProtocol, type)
    shared = {"limits": limits, "admitted": Connections(limits.connections, limits.connections_each)}
    return type("Requests", (_Requests,), shared), type("Streams", (_Patient, AutoWebSocketsProtocol), shared)
