"""The service as one or several processes that share a port: start, supervision, and graceful shutdown."""

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

LARGEST_HEAD = 2**14  # Bytes: limit for the head of a request (chosen by hand).
# Seconds between two pings of a stream, at most, and for the answer to one (chosen by hand).
PING_SECONDS = 20.0
EXIT_SECONDS = 5.0  # Seconds that a worker has to exit after its shutdown time (chosen by hand).
LOAD_FAILED = 2  # Exit status of a worker that cannot load its monitor.
SUPERVISION_SECONDS = 0.2  # Seconds between two checks of the workers (chosen by hand).


@dataclass(frozen=True)
class Serving:
    """Address and access of the service. token: clients must send it; certificate, key: files for TLS."""

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    open_metrics: bool = False
    certificate: Path | None = None
    key: Path | None = None
    limits: Limits = field(default_factory=Limits)


def serve(monitor: "Monitor", serving: Serving) -> None:
    """Serve until SIGTERM or SIGINT; open requests are finished."""
    with listening(serving) as listener:
        _run(monitor, serving, listener, Metrics())


def listening(serving: Serving, *options: int) -> socket.socket:
    """Return a bound socket.

    BadInput if the address is in use or invalid. options: socket options to switch on.
    """
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
            f"cannot listen on {serving.host}:{serving.port} ({error.strerror or error}). Choose another "
            "with --host and --port."
        ) from error
    return made


@logs.service_logs()
def _run(
    monitor: "Monitor", serving: Serving, listener: socket.socket, metrics: Metrics, parent: int | None = None
) -> None:
    """Serve in this process until it is stopped."""
    from holdfast.monitor.service.serve import RequestHandler, application, check_extra

    check_extra()
    import uvicorn

    from holdfast.monitor.service.protocols import protocols

    limits = serving.limits
    desk = RequestHandler(monitor, limits, metrics)
    made = application(desk, token=serving.token, open_metrics=serving.open_metrics)
    http, streams = protocols(limits)
    config = uvicorn.Config(
        made,
        http=http,
        ws=streams,
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        lifespan="on",
        h11_max_incomplete_event_size=LARGEST_HEAD,
        timeout_keep_alive=limits.idle,  # type: ignore[arg-type]
        ws_max_size=limits.body,
        ws_max_queue=4,
        ws_per_message_deflate=False,
        ws_ping_interval=min(PING_SECONDS, limits.idle),
        ws_ping_timeout=min(PING_SECONDS, limits.idle),
        timeout_graceful_shutdown=limits.closing,  # type: ignore[arg-type]
        ssl_certfile=serving.certificate,
        ssl_keyfile=serving.key,
    )

    class Server(uvicorn.Server):
        """SIGTERM: /ready fails and new requests are refused; then the port is closed and the process exits.

        SIGINT closes the port at once; a second one does not wait for open requests.
        """

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


@logs.service_logs()
def serve_workers(load: Callable[[], "Monitor"], serving: Serving, workers: int) -> None:
    """Run this number of worker processes, each with its own monitor, on a shared port.

    A worker that crashes is restarted, unless it never became ready. `load` is called in each worker, so it
    must be picklable.

    On Linux each worker has its own socket, and the kernel distributes connections. A single shared socket
    would mostly be served by the first worker to wake up. On other systems the workers share one socket.
    """
    own = (socket.SO_REUSEPORT,) if sys.platform == "linux" else ()
    listening(serving).close()  # fail if another service uses the port, which SO_REUSEPORT would not detect
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
            time.sleep(SUPERVISION_SECONDS)
            for number, process in enumerate(running):
                if process.exitcode is not None and not stopping:
                    failed = failed or not rows[number, UP]
                    logs.log.warning(
                        "worker %d ended with %s%s",
                        number,
                        process.exitcode,
                        "" if failed else "; it is restarted",
                    )
                    running[number] = process if failed else start(number)
        if failed:
            stop(signal.SIGTERM, None)
    for process in running:
        process.join(serving.limits.lingering + serving.limits.closing + EXIT_SECONDS)
        if process.exitcode is None:
            process.kill()
    if failed:
        raise BadInput("a worker did not start, so the service stops; its error is printed above.")


def _rows(board: Any) -> Board:
    """View shared memory as one row for each worker."""
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
    """Run a worker. bound: the shared socket, or options of its own one."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the server installs its handler
    try:
        monitor = load()
        listener = bound if isinstance(bound, socket.socket) else listening(serving, *bound)
        _run(monitor, serving, listener, Metrics(_rows(board), number), parent)
    except HoldfastError as error:
        print(printable(error), file=sys.stderr)
        sys.exit(LOAD_FAILED)
