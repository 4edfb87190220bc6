"""What uvicorn leaves open: how long a client may take to say what it wants, and to take the answer.

uvicorn closes a connection that is quiet after an answer, limits the head of a request, and counts connections. It waits for ever for a
head that comes byte by byte, for an answer that nobody reads, and for the rest of a body that was answered already.
"""

import asyncio
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.auto import AutoWebSocketsProtocol

from holdfast.monitor.service.limits import Limits

SPARE = 64  # connections beyond the limit that are told so; more are cut off without a word


class _Patient:
    """Cuts a client off that does not take what it was sent."""

    limits: ClassVar[Limits]
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)  # type: ignore[misc]
        transport.set_write_buffer_limits(1, 0)  # whatever the system does not take at once counts as unread

    def pause_writing(self) -> None:
        super().pause_writing()  # type: ignore[misc]
        self._unread = self.loop.call_later(self.limits.writing, self.transport.abort)  # type: ignore[attr-defined]

    def resume_writing(self) -> None:
        super().resume_writing()  # type: ignore[misc]
        self._taken()

    def connection_lost(self, exc: Exception | None) -> None:
        self._taken()
        super().connection_lost(exc)  # type: ignore[misc]

    def _taken(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


class _Requests(_Patient, H11Protocol):
    """A head is whole in time, or the connection ends."""

    _head: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections + SPARE:
            transport.abort()
            return
        self._head = self.loop.call_later(self.limits.reading, transport.abort)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._whole()
            if self.conn.their_state is h11.SEND_BODY and self.cycle is not None and self.cycle.response_complete:
                self.transport.close()  # it was answered, and goes on sending
        elif self._head is None and not self.transport.is_closing() and self.timeout_keep_alive_task is None:
            self._head = self.loop.call_later(self.limits.reading, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._whole()
        super().connection_lost(exc)

    def _whole(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None


def protocols(limits: Limits) -> tuple[type[asyncio.Protocol], type[asyncio.Protocol]]:
    """For HTTP and for streams."""
    assert isinstance(AutoWebSocketsProtocol, type)
    http = type("Requests", (_Requests,), {"limits": limits})
    return http, type("Streams", (_Patient, AutoWebSocketsProtocol), {"limits": limits})
