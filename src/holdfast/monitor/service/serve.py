"""A monitor as a small HTTP service: POST /score, the websocket /stream, GET /health and GET /metrics.

One thread does all the work of the model, so that the event loop always answers; questions that wait go to it together. Bodies, sequences,
streams and the queue have limits; what goes beyond them, or makes no sense, is refused with a reason and changes nothing.
"""

import asyncio
import importlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.errors import HoldfastError, MissingExtra
from holdfast.monitor.service.batching import Batches
from holdfast.monitor.service.json_messages import Refused, read_element, read_question, score_json, scores_json
from holdfast.monitor.service.metrics import TYPE, Metrics

if TYPE_CHECKING:
    from fastapi import FastAPI, Request, WebSocket
    from fastapi.responses import Response

    from holdfast.monitor.monitor import Monitor

Answer = TypeVar("Answer")
PATHS = ("/score", "/health", "/metrics")
DIGITS = 18  # of a length that can be believed
TRY_LATER = 1013  # websocket: the service is full
log = logging.getLogger("holdfast.serve")


@dataclass(frozen=True)
class Limits:
    """What a client may ask for."""

    body: int = 2**20  # bytes of a request or a message
    length: int = 512  # elements of a sequence
    waiting: int = 256  # questions asked and not yet answered
    streams: int = 64  # open at once
    connections: int = 1024  # open at once, streams among them
    reading: float = 30.0  # seconds for a body to come in
    closing: int = 10  # seconds for open questions when the service stops


def serve(monitor: "Monitor", *, host: str = "127.0.0.1", port: int = 8000, limits: Limits | None = None) -> None:
    """Answers until it is told to stop (SIGINT or SIGTERM); open requests are then finished."""
    limits = limits or Limits()
    made = app(monitor, limits)
    import uvicorn

    config = uvicorn.Config(
        made, host=host, port=port, log_level="warning", access_log=False, ws_max_size=limits.body, ws_max_queue=4,
        timeout_graceful_shutdown=limits.closing, limit_concurrency=limits.connections,
    )  # fmt: skip
    uvicorn.Server(config).run()


def check_extra() -> None:
    """MissingExtra now, not when the first request comes."""
    for package in ("fastapi", "uvicorn", "websockets"):
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise MissingExtra(f"The service needs fastapi, uvicorn and websockets ({error}): pip install 'holdfast[serve]'.") from error


def app(monitor: "Monitor", limits: Limits | None = None) -> "FastAPI":
    """The service as an ASGI application, for your own server."""
    check_extra()
    import fastapi
    from fastapi.responses import JSONResponse, PlainTextResponse

    desk = _Desk(monitor, limits or Limits())

    @asynccontextmanager
    async def life(_: fastapi.FastAPI) -> AsyncIterator[None]:
        yield
        desk.worker.shutdown(wait=True, cancel_futures=True)

    made = fastapi.FastAPI(title="holdfast monitor", lifespan=life)
    made.add_middleware(_Counted, metrics=desk.metrics)

    @made.post("/score")
    async def score(request: fastapi.Request) -> fastapi.Response:
        return await desk.answer(request)

    @made.get("/health")
    async def health() -> fastapi.Response:
        return JSONResponse(desk.health())

    @made.get("/metrics")
    async def metrics() -> fastapi.Response:
        return PlainTextResponse(desk.metrics.text(), media_type=TYPE)

    @made.websocket("/stream")
    async def stream(socket: fastapi.WebSocket) -> None:
        await desk.stream(socket)

    return made


class _Desk:
    """The monitor behind its queue."""

    def __init__(self, monitor: "Monitor", limits: Limits) -> None:
        self.monitor = monitor
        self.limits = limits
        self.metrics = Metrics()
        self.worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="monitor")
        self.batches = Batches(monitor, self.worker)
        self.waiting = 0
        words = monitor.net.vocabulary
        self.words = None if words is None else frozenset(words)

    def health(self) -> dict[str, Any]:
        made = {"mode": self.monitor.settings.mode, "mutation": self.monitor.mutation.kind, "outputs": self.monitor.outputs.kind}
        return {"status": "ok", "model": self.monitor.net.name, **made, "waiting": self.waiting}

    async def answer(self, request: "Request") -> "Response":
        from fastapi.responses import JSONResponse

        try:
            body = await self._body(request)
            asked = read_question(body, self.words, self.limits.length)
            scores = await self._ask(lambda: self.batches.scores(asked.sequence, asked.k))
        except Refused as refused:
            return JSONResponse({"error": refused.reason}, status_code=refused.status)
        except Exception:
            log.exception("a question could not be answered")
            return JSONResponse({"error": "the service failed on this question; its log says why."}, status_code=500)
        self.metrics.elements += len(scores)
        return JSONResponse(scores_json(scores))

    async def _body(self, request: "Request") -> bytes:
        """Never more than the limit is read, whatever the client says of its length."""
        from starlette.requests import ClientDisconnect

        too_large = Refused(413, f"the body is larger than {self.limits.body} bytes.")
        said = request.headers.get("content-length", "0")
        if not said.isdecimal() or len(said) > DIGITS or int(said) > self.limits.body:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.reading):
                async for part in request.stream():
                    body += part
                    if len(body) > self.limits.body:
                        raise too_large
        except TimeoutError:
            raise Refused(408, f"the body was not whole within {self.limits.reading:g} s.") from None
        except ClientDisconnect:
            raise Refused(400, "the client left before its body was whole.") from None
        return bytes(body)

    async def _ask(self, work: Callable[[], Awaitable[Answer]]) -> Answer:
        """Begins the work only where there is room for it. What holdfast refuses is the client's mistake."""
        if self.waiting >= self.limits.waiting:
            raise Refused(503, "too many questions are waiting; try again later.")
        self.waiting += 1
        try:
            return await work()
        except HoldfastError as error:
            raise Refused(422, str(error)) from error
        finally:
            self.waiting -= 1

    async def stream(self, socket: "WebSocket") -> None:
        """One element in, one score out; a message that makes no sense gets its reason and leaves the stream where it was."""
        from fastapi import WebSocketDisconnect

        if self.metrics.streams >= self.limits.streams:
            await socket.close(TRY_LATER, "too many streams are open; try again later")
            return
        await socket.accept()
        self.metrics.streams += 1
        try:
            own = self.monitor.stream()
            while True:
                await socket.send_json(await self._reply(own, await socket.receive()))
        except (WebSocketDisconnect, RuntimeError):  # a send to a socket that closed meanwhile is a RuntimeError
            pass
        finally:
            self.metrics.streams -= 1

    async def _reply(self, own: Any, message: MutableMapping[str, Any]) -> dict[str, Any]:
        from fastapi import WebSocketDisconnect

        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code") or 1000)
        try:
            element = read_element(message.get("text") or message.get("bytes") or b"")
            if element is None:
                own.reset()
                return {"reset": True}
            run = asyncio.get_running_loop().run_in_executor
            score = await self._ask(lambda: run(self.worker, own.step, element))
        except Refused as refused:
            self.metrics.failed += 1
            return {"error": refused.reason}
        except Exception:
            log.exception("an element of a stream could not be scored")
            self.metrics.failed += 1
            return {"error": "the service failed on this element; its log says why."}
        self.metrics.elements += score is not None
        return score_json(score)


class _Counted:
    """Every HTTP answer is counted, with the time it took."""

    def __init__(self, app: Callable[..., Awaitable[None]], metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()

        async def counted(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                path = scope["path"] if scope["path"] in PATHS else "other"
                self.metrics.answered(path, message["status"], time.perf_counter() - began)
            await send(message)

        await self.app(scope, receive, counted)
