"""A monitor as an HTTP service: POST /score, the websocket /stream, GET /health, /live, /ready and /metrics.

One thread runs the model, so that the event loop always responds; waiting requests are passed to it in
batches. Bodies, sequences, streams and the queue have limits. A request that exceeds them or is invalid is
refused with a reason and has no effect.
"""

import asyncio
import importlib
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.errors import HoldfastError, MissingExtra
from holdfast.monitor.service.batching import RequestBatcher
from holdfast.monitor.service.gate import Gate
from holdfast.monitor.service.json_messages import (
    Refused,
    ScoreRequest,
    check_length,
    read_element,
    read_question,
    score_json,
    scores_json,
)
from holdfast.monitor.service.limits import Limits
from holdfast.monitor.service.logs import log, where
from holdfast.monitor.service.metrics import TYPE, Metrics
from holdfast.monitor.service.rates import RateLimiter

if TYPE_CHECKING:
    from fastapi import FastAPI, Request, WebSocket
    from fastapi.responses import Response

    from holdfast.monitor.monitor import Monitor
    from holdfast.monitor.score import Scores
    from holdfast.network.text import Texts

Answer = TypeVar("Answer")
INLINE_BYTES = 2**13  # Bytes: shorter messages are parsed on the event loop, in well below a millisecond.
MOST_LENGTH_DIGITS = 18  # Number of digits of a content length that is accepted: fewer than an int64 has.
# Websocket close codes: the service is full; the stream was idle for too long.
TRY_LATER, GOING_AWAY = 1013, 1001
STOPPING = "the service is stopping; use another instance."


def check_extra() -> None:
    """Raise MissingExtra now, not at the first request."""
    for package in ("fastapi", "uvicorn", "websockets"):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise MissingExtra(
                f"The service needs fastapi, uvicorn and websockets ({error}): pip install 'holdfast[serve]'."
            ) from error


def app(
    monitor: "Monitor", limits: Limits | None = None, *, token: str | None = None, open_metrics: bool = False
) -> "FastAPI":
    """Build the service as an ASGI application, for your own server.

    token: clients must send it; None: no access control. The probes /live and /ready are always open,
    /metrics with open_metrics.
    """
    check_extra()
    return application(RequestHandler(monitor, limits or Limits()), token=token, open_metrics=open_metrics)


def application(desk: "RequestHandler", *, token: str | None = None, open_metrics: bool = False) -> "FastAPI":
    import fastapi
    from fastapi.responses import JSONResponse, PlainTextResponse
    from starlette.exceptions import HTTPException

    @asynccontextmanager
    async def life(_: fastapi.FastAPI) -> AsyncIterator[None]:
        yield
        for threads in (desk.reading, desk.worker):
            threads.shutdown(wait=True, cancel_futures=True)

    made = fastapi.FastAPI(title="holdfast monitor", lifespan=life, openapi_url=None)
    made.add_middleware(Gate, metrics=desk.metrics, rates=desk.rates, token=token, open_metrics=open_metrics)

    async def refused(_: fastapi.Request, error: Exception) -> fastapi.Response:
        """Answer unknown paths and methods in the format of all errors."""
        assert isinstance(error, HTTPException)
        return JSONResponse(
            {"error": f"{str(error.detail).lower()}."}, error.status_code, headers=error.headers
        )

    made.add_exception_handler(HTTPException, refused)

    @made.post("/score")
    async def score(request: fastapi.Request) -> fastapi.Response:
        return await desk.answer(request)

    @made.get("/health")
    async def health() -> fastapi.Response:
        return JSONResponse(desk.health())

    @made.get("/live")
    async def live() -> fastapi.Response:
        return JSONResponse({"status": "live"})

    @made.get("/ready")
    async def ready() -> fastapi.Response:
        return (
            JSONResponse({"status": "stopping"}, status_code=503)
            if desk.stopping
            else JSONResponse({"status": "ready"})
        )

    @made.get("/metrics")
    async def metrics() -> fastapi.Response:
        return PlainTextResponse(desk.metrics.text(), media_type=TYPE)

    @made.websocket("/stream")
    async def stream(socket: fastapi.WebSocket) -> None:
        await desk.stream(socket)

    return made


class RequestHandler:
    """The monitor with its queue. stopping: open requests are finished, and new ones refused."""

    def __init__(self, monitor: "Monitor", limits: Limits, metrics: Metrics | None = None) -> None:
        self.monitor = monitor
        self.limits = limits
        self.metrics = metrics or Metrics()
        self.rates = RateLimiter(limits.rate, limits.burst)
        self.stopping = False
        self.worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="monitor")
        self.reading = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reading")
        self.batches = RequestBatcher(monitor, self.worker)
        self.waiting = 0

    def health(self) -> dict[str, Any]:
        made = {
            "mode": self.monitor.settings.mode,
            "mutation": self.monitor.mutation.kind,
            "outputs": self.monitor.outputs.kind,
        }
        return {"status": "ok", "model": self.monitor.net.name, **made, "waiting": self.waiting}

    async def answer(self, request: "Request") -> "Response":
        from fastapi.responses import JSONResponse

        try:
            if self.stopping:
                raise Refused(503, STOPPING)
            body = await self._body(request)
            text, scores = await self._ask(lambda: self._scores(body))
        except Refused as refused:
            return JSONResponse({"error": refused.reason}, status_code=refused.status)
        except Exception as error:
            log.error("a question could not be answered: %s", where(error))
            return JSONResponse(
                {"error": "the service failed on this question; its log says where."}, status_code=500
            )
        self.metrics.count_scores([score.value for score in scores])
        return JSONResponse(scores_json(scores, text))

    async def _read(self, message: bytes | str, read: Callable[[], Any]) -> Any:
        """Parse a long message in a thread, so that the event loop stays responsive."""
        if len(message) <= INLINE_BYTES:
            return read()
        return await asyncio.get_running_loop().run_in_executor(self.reading, read)

    async def _scores(self, body: bytes) -> "tuple[Texts | None, Scores]":
        """Compute scores. Texts are tokenized in the model's thread: tokenizers need not be thread-safe."""
        asked: ScoreRequest = await self._read(
            body, lambda: read_question(body, self.limits.length, self.limits.depth)
        )
        if not isinstance(asked.sequence, str):
            return None, await self.batches.scores(asked.sequence, asked.k)
        run = asyncio.get_running_loop().run_in_executor
        text = await run(self.worker, self.monitor.reader.texts, [asked.sequence])
        check_length(len(text.tokens[0]), self.limits.length)
        return text, await self.batches.scores(text.tokens[0], asked.k)

    async def _body(self, request: "Request") -> bytes:
        """Read at most the limit, whatever content length the client declares."""
        from starlette.requests import ClientDisconnect

        too_large = Refused(413, f"the body is larger than {self.limits.body} bytes.")
        said = request.headers.get("content-length", "0")
        if not said.isdecimal() or len(said) > MOST_LENGTH_DIGITS or int(said) > self.limits.body:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.reading):
                async for part in request.stream():
                    body += part
                    if len(body) > self.limits.body:
                        raise too_large
        except TimeoutError:
            raise Refused(408, f"the body did not arrive within {self.limits.reading:g} s.") from None
        except ClientDisconnect:
            raise Refused(400, "the client disconnected before its body was complete.") from None
        return bytes(body)

    async def _ask(self, work: Callable[[], Awaitable[Answer]]) -> Answer:
        """Run work if the queue is not full. An error of holdfast is the client's mistake."""
        if self.waiting >= self.limits.waiting:
            raise Refused(503, "too many requests are waiting; try again later.")
        self.waiting += 1
        try:
            return await work()
        except HoldfastError as error:
            raise Refused(422, str(error)) from error
        finally:
            self.waiting -= 1

    async def stream(self, socket: "WebSocket") -> None:
        """Answer each element with its score.

        An invalid message is answered with a reason and leaves the stream unchanged.
        """
        from fastapi import WebSocketDisconnect

        if self.stopping or self.metrics.streams >= self.limits.streams:
            await _deny(socket, STOPPING if self.stopping else "too many streams are open; try again later.")
            return
        await socket.accept()
        self.metrics.count_streams(1)
        try:
            own = self.monitor.stream()
            while True:
                async with asyncio.timeout(self.limits.idle):
                    message = await socket.receive()
                await self._in_turn(socket)
                await socket.send_json(await self._reply(own, message))
        except TimeoutError:
            await socket.close(GOING_AWAY, f"no message for {self.limits.idle:g} s")
        except (WebSocketDisconnect, RuntimeError):  # sending to a closed socket raises RuntimeError
            pass
        finally:
            self.metrics.count_streams(-1)

    async def _in_turn(self, socket: "WebSocket") -> None:
        """Slow a stream down to the rate limit of its address, by delaying the answer and the next read."""
        address = socket.client.host if socket.client else ""
        while wait := self.rates.take(address):
            await asyncio.sleep(wait)

    async def _reply(self, own: Any, message: MutableMapping[str, Any]) -> dict[str, Any]:
        from fastapi import WebSocketDisconnect

        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code") or 1000)
        try:
            said = message.get("text") or message.get("bytes") or b""
            element = await self._read(said, lambda: read_element(said, self.limits.depth))
            if element is None:
                own.reset()
                return {"reset": True}
            run = asyncio.get_running_loop().run_in_executor
            score = await self._ask(lambda: run(self.worker, own.step, element))
        except Refused as refused:
            self.metrics.count_failure()
            return {"error": refused.reason}
        except Exception as error:
            log.error("an element of a stream could not be scored: %s", where(error))
            self.metrics.count_failure()
            return {"error": "the service failed on this element; its log says where."}
        self.metrics.count_scores([] if score is None else [score.value])
        return score_json(score)


async def _deny(socket: "WebSocket", reason: str) -> None:
    """Deny a stream in the answer to the handshake, in the format of all errors, or else by closing it."""
    from fastapi.responses import JSONResponse

    if "websocket.http.response" in (socket.scope.get("extensions") or {}):
        await socket.send_denial_response(JSONResponse({"error": reason}, status_code=503))
    else:
        await socket.close(TRY_LATER, reason)
