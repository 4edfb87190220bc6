"""Access control for requests and streams: a token, rate limits for addresses, and metrics."""

import asyncio
import hmac
import math
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any

from holdfast.monitor.service.json_messages import error_body
from holdfast.monitor.service.logs import log, where
from holdfast.monitor.service.metrics import Metrics
from holdfast.monitor.service.rates import RateLimiter

MARK = "holdfast.reserved"  # Set in the scope of a request over a connection that is reserved for probes.
PROBES = ("/live", "/ready")  # Requests of whoever starts and stops services: never refused.
DISCONNECT_SECONDS = 1.0  # Seconds to wait for a refused stream to disconnect (chosen by hand).
Application = Callable[..., Awaitable[None]]
Message = MutableMapping[str, Any]


class Gate:
    """ASGI middleware in front of the application."""

    def __init__(
        self, app: Application, metrics: Metrics, rates: RateLimiter, token: str | None, *, open_metrics: bool
    ) -> None:
        self.app, self.metrics, self.rates = app, metrics, rates
        self.token = None if token is None else f"Bearer {token}".encode()
        self.free = (*PROBES, "/metrics") if open_metrics else PROBES

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        began, begun = time.perf_counter(), False

        async def count_message(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                self.metrics.count_answer(scope["path"], message["status"], time.perf_counter() - began)
            await send(message)

        refused = self._refusal(scope)
        if refused is not None:
            await _refuse(scope, count_message, *refused)
            if scope["type"] == "websocket":
                await _gone(receive)
            return
        try:
            await self.app(scope, receive, count_message)
        except Exception as error:
            log.error("a request failed: %s", where(error))
            if scope["type"] == "http" and not begun:
                await _refuse(
                    scope, count_message, 500, "the service failed on this request; its log says where.", {}
                )

    def _refusal(self, scope: Message) -> tuple[int, str, dict[str, str]] | None:
        """Return status, reason and headers if the request is refused, else None."""
        probe = scope["path"] in PROBES
        if scope.get(MARK) and not probe:
            return (
                503,
                "too many connections are open, in all or from this address; try again later.",
                {"connection": "close"},
            )
        wait = 0.0 if probe else self.rates.take(scope["client"][0] if scope.get("client") else "")
        if wait:  # before the token is checked, so that guesses count
            return (
                429,
                f"too many requests from this address; try again in {wait:.1f} s.",
                {"retry-after": str(math.ceil(wait))},
            )
        if self.token is not None and scope["path"] not in self.free:
            given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
            if not hmac.compare_digest(given, self.token):
                return (
                    401,
                    "this service needs a token: send the header 'Authorization: Bearer TOKEN'.",
                    {"www-authenticate": "Bearer"},
                )
        return None


async def _gone(receive: Any) -> None:
    """Wait until the server has closed a refused stream, which it reports twice."""
    left = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(DISCONNECT_SECONDS):
            while left < 2:
                left += (await receive())["type"] == "websocket.disconnect"


async def _refuse(scope: Message, send: Any, status: int, reason: str, headers: dict[str, str]) -> None:
    """Refuse a request over HTTP, or a stream in the answer to its handshake if possible."""
    body = error_body(reason)
    lines = {"content-type": "application/json", "content-length": str(len(body)), **headers}
    kind = "http.response" if scope["type"] == "http" else "websocket.http.response"
    if kind.startswith("websocket") and "websocket.http.response" not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": 1008, "reason": reason[:100]})
        return
    await send(
        {
            "type": f"{kind}.start",
            "status": status,
            "headers": [(a.encode(), b.encode()) for a, b in lines.items()],
        }
    )
    await send({"type": f"{kind}.body", "body": body})
