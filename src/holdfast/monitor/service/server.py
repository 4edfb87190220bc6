"""The service as one process or several that share a port: started, watched, and stopped without losing what is open."""

import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.errors import BadInput, HoldfastError
from holdfast.execution.python_path import without_working_folder
from holdfast.foreign_text import printable
from holdfast.monitor.service import logs
from holdfast.monitor.service.limits import Limits
from holdfast.monitor.service.metrics import SIZE, UP, Board, Metrics

if TYPE_CHECKING:
    from holdfast.monitor.monitor import Monitor

HEAD = 2**14  # bytes of a request's head
PING = 20.0  # seconds between two, at most, and for the answer to one
BEYOND = 5.0  # seconds more than it may take that a worker has to end
FAILED = 2  # how a worker ends that cannot open its monitor
LOOK = 0.2  # seconds between two looks at the workers


@dataclass(frozen=True)
class Serving:
    """Where and how. token: what clients must show, if anything; certificate, key: files for TLS."""

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    open_metrics: bool = False
    certificate: Path | None = None
    key: Path | None = None
    limits: Limits = field(default_factory=Limits)


def serve(monitor: "Monitor", serving: Serving) -> None:
    """Answers until it is told to stop: SIGTERM and SIGINT let open requests end."""
    with listening(serving) as listener:
        _run(monitor, serving, listener, Metrics())


def listening(serving: Serving, *options: int) -> socket.socket:
    """A socket that is bound; BadInput where the address is taken, or nobody's. options: of the socket, that are on."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            serving.host, serving.port, type=socket.SOCK_STREAM
        )[0]
        made = socket.socket(family, kind, protocol)
        for option in (socket.SO_REUSEADDR, *options):
            made.setsockopt(socket.SOL_SOCKET, option, 1)
        made.bind(address)
    except OSError as error:
        raise BadInput(
            f"cannot listen on {serving.host}:{serving.port} ({error.strerror or error}). Choose another with --host and --port."
        ) from error
    return made


def _run(
    monitor: "Monitor", serving: Serving, listener: socket.socket, metrics: Metrics, parent: int | None = None
) -> None:
    """In this process, until it is told to stop."""
    from holdfast.monitor.service.serve import Desk, application, check_extra

    check_extra()
    import uvicorn

    from holdfast.monitor.service.protocols import protocols

    limits = serving.limits
    desk = Desk(monitor, limits, metrics)
    made = application(desk, token=serving.token, open_metrics=serving.open_metrics)
    http, streams = protocols(limits)
    logs.begin()
    config = uvicorn.Config(
        made, http=http, ws=streams, log_config=None, access_log=False, proxy_headers=False, server_header=False, lifespan="on",
        h11_max_incomplete_event_size=HEAD, timeout_keep_alive=limits.idle,  # type: ignore[arg-type]
        ws_max_size=limits.body, ws_max_queue=4, ws_per_message_deflate=False, ws_ping_interval=min(PING, limits.idle),
        ws_ping_timeout=min(PING, limits.idle), timeout_graceful_shutdown=limits.closing,  # type: ignore[arg-type]
        ssl_certfile=serving.certificate, ssl_keyfile=serving.key,
    )  # fmt: skip

    class Server(uvicorn.Server):
        """SIGTERM: /ready says no, nothing new is begun; a moment later the port is closed, what is open ends, and the process with 0.
        SIGINT closes the port at once; a second one waits for nothing."""

        until: float | None = None

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            metrics.up()

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            self.force_exit = sig == signal.SIGINT and self.should_exit
            desk.stopping = True
            self.until = self.until or time.monotonic() + (limits.lingering if sig == signal.SIGTERM else 0)
            self.should_exit = self.should_exit or sig == signal.SIGINT

        async def on_tick(self, counter: int) -> bool:
            orphan = parent is not None and os.getppid() != parent
            self.should_exit = (
                self.should_exit or orphan or (self.until is not None and time.monotonic() >= self.until)
            )
            return await super().on_tick(counter)

    Server(config).run([listener])


# ---- several processes


def serve_workers(load: Callable[[], "Monitor"], serving: Serving, workers: int) -> None:
    """So many processes, each with a monitor of its own, share one port. One that falls over is started again, unless it never came
    up; `load` is called in each, so it must be a function that can be sent there.

    On Linux each has a socket of its own, and the system deals connections out; one that all of them shared would mostly be emptied by
    whoever wakes first. Elsewhere they share one.
    """
    own = (socket.SO_REUSEPORT,) if sys.platform == "linux" else ()
    listening(serving).close()  # sockets that share a port would also share that of another service
    logs.begin()
    context = multiprocessing.get_context("spawn")
    board = context.RawArray("d", workers * SIZE)
    rows = _rows(board)
    shared = replace(serving, limits=replace(serving.limits, rate=serving.limits.rate / workers))
    stopping = False

    def stop(sig: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True
        listener.close()
        for process in running:
            _tell(process, sig)

    def start(number: int) -> BaseProcess:
        rows[number, UP] = 0
        bound = own if own else listener
        process = context.Process(
            target=_work, args=(load, shared, bound, board, number, os.getpid()), name=f"worker {number}"
        )
        with without_working_folder():
            process.start()
        return process

    with listening(serving, *own) as listener:
        running: list[BaseProcess] = []
        for sig in (signal.SIGTERM, signal.SIGINT):
            signal.signal(sig, stop)
        running += map(start, range(workers))
        failed = False
        while not stopping and not failed:
            time.sleep(LOOK)
            for number, process in enumerate(running):
                if process.exitcode is not None and not stopping:
                    failed = failed or not rows[number, UP]
                    logs.log.warning(
                        "worker %d ended with %s%s",
                        number,
                        process.exitcode,
                        "" if failed else "; it is started again",
                    )
                    running[number] = process if failed else start(number)
        if failed:
            stop(signal.SIGTERM, None)
    for process in running:
        process.join(serving.limits.lingering + serving.limits.closing + BEYOND)
        if process.exitcode is None:
            process.kill()
    if failed:
        raise BadInput("a worker did not come up, so the service stops; what it said stands above.")


def _rows(board: Any) -> Board:
    """Shared memory as a row for each worker."""
    return np.frombuffer(board, dtype=np.float64).reshape(-1, SIZE)


def _tell(process: BaseProcess, sig: int) -> None:
    if process.pid is not None and process.exitcode is None:
        os.kill(process.pid, sig)


def _work(
    load: Callable[[], "Monitor"],
    serving: Serving,
    bound: socket.socket | tuple[int, ...],
    board: Any,
    number: int,
    parent: int,
) -> None:
    """bound: the socket of all, or the options of one of its own."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the server listens to it
    try:
        monitor = load()
        listener = bound if isinstance(bound, socket.socket) else listening(serving, *bound)
        _run(monitor, serving, listener, Metrics(_rows(board), number), parent)
    except HoldfastError as error:
        print(printable(error), file=sys.stderr)
        sys.exit(FAILED)
