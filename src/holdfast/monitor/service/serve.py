"""A monitor as a small HTTP service: POST /score, the websocket /stream, GET /health, /live, /ready and /metrics.

One thread does all the work of the model, so that the event loop always answers; questions that wait go to it together. Bodies, sequences,
streams and the queue have limits; what goes beyond them, or makes no sense, is refused with a reason and changes nothing.
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
from holdfast.monitor.service.rates import Rates

if TYPE_CHECKING:
    from fastapi import FastAPI, Request, WebSocket
    from fastapi.responses import Response

    from holdfast.monitor.monitor import Monitor
    from holdfast.monitor.score import Scores
    from holdfast.network.text import Texts

Answer = TypeVar("Answer")
SHORT = 2**13  # Bytes of a message that is read on the event loop: well below a millisecond.
DIGITS = 18  # of a length that can be believed
TRY_LATER, GOING_AWAY = 1013, 1001  # websocket: the service is full; the stream was quiet for too long
STOPPING = "the service is stopping; ask another one."


def check_extra() -> None:
    """MissingExtra now, not when the first request comes."""
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
    """The service as an ASGI application, for your own server. token: what clients must show; None: nothing.

    The probes /live and /ready are open to all, /metrics with open_metrics."""
    check_extra()
    return application(Desk(monitor, limits or Limits()), token=token, open_metrics=open_metrics)


def application(desk: "Desk", *, token: str | None = None, open_metrics: bool = False) -> "FastAPI":
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
        """What the router says of paths and methods, in the form of all errors."""
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


class Desk:
    """The monitor behind its queue. stopping: what is open is finished, and nothing new begun."""

    def __init__(self, monitor: "Monitor", limits: Limits, metrics: Metrics | None = None) -> None:
        self.monitor = monitor
        self.limits = limits
        self.metrics = metrics or Metrics()
        self.rates = Rates(limits.rate, limits.burst)
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
        self.metrics.count_elements(len(scores))
        return JSONResponse(scores_json(scores, text))

    async def _read(self, message: bytes | str, read: Callable[[], Any]) -> Any:
        """A long message is read in a thread of its own: the event loop has probes and other clients to answer."""
        if len(message) <= SHORT:
            return read()
        return await asyncio.get_running_loop().run_in_executor(self.reading, read)

    async def _scores(self, body: bytes) -> "tuple[Texts | None, Scores]":
        """A text is cut where the model works: whoever wrote the tokenizer need not think of threads, and a long text holds up nobody."""
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
        except (
            WebSocketDisconnect,
            RuntimeError,
        ):  # a send to a socket that closed meanwhile is a RuntimeError
            pass
        finally:
            self.metrics.count_streams(-1)

    async def _in_turn(self, socket: "WebSocket") -> None:
        """A stream that goes faster than its address may is slowed down: its next message is read when there is room for this one."""
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
        self.metrics.count_elements(score is not None)
        return score_json(score)


async def _deny(socket: "WebSocket", reason: str) -> None:
    """In the answer to the handshake, in the form of all errors; by closing the stream where the server cannot."""
    from fastapi.responses import JSONResponse

    if "websocket.http.response" in (socket.scope.get("extensions") or {}):
        await socket.send_denial_response(JSONResponse({"error": reason}, status_code=503))
    else:
        await socket.close(TRY_LATER, reason)
