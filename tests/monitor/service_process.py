"""`holdfast monitor serve` as a process of its own, and clients on bare sockets that need not behave."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[2] / "src"
TEXT = "please cancel my subscription"
PATIENCE = 600.0  # Seconds after which what must happen counts as hanging; it takes one or two.


class Running:
    """Every client comes from an address of its own, all of them this machine, so that nobody uses up another's rate."""

    def __init__(self, *options: Any, scheme: Any = None, **variables: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        around = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", **variables}
        begin = [sys.executable, "-c", "from holdfast.cli import main; main()", "monitor", "serve"]
        command = [*begin, "--port", str(self.port), *map(str, options)]
        self.scheme = scheme  # an SSLContext, where it speaks TLS
        self.process = subprocess.Popen(
            command, env=around, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.said: tuple[str, str] | None = None

    def wait(self) -> None:
        for _ in range(6000):
            assert self.process.poll() is None, self.process.communicate()
            try:
                if self.get("/ready")[0] == 200:
                    return
            except OSError:
                time.sleep(0.1)
        raise AssertionError("the service did not come up")

    def connect(
        self, source: str = "127.0.0.1", options: Sequence[tuple[int, int, Any]] = ()
    ) -> socket.socket:
        wire = socket.socket()
        for option in options:
            wire.setsockopt(*option)
        wire.settimeout(PATIENCE)
        wire.bind((source, 0))
        wire.connect(("127.0.0.1", self.port))
        return wire if self.scheme is None else self.scheme.wrap_socket(wire, server_hostname="localhost")

    def raw(self, sent: bytes, source: str = "127.0.0.1") -> tuple[int, dict[str, str], Any]:
        """One answer -> status, headers, the JSON in it or its text."""
        with self.connect(source) as wire:
            wire.sendall(sent)
            return read_answer(wire)

    def get(self, path: str, source: str = "127.0.0.1", **headers: str) -> tuple[int, dict[str, str], Any]:
        return self.raw(request("GET", path, b"", **headers), source)

    def ask(self, body: Any, source: str = "127.0.0.1", **headers: str) -> tuple[int, dict[str, str], Any]:
        return self.raw(
            request(
                "POST", "/score", body if isinstance(body, bytes) else json.dumps(body).encode(), **headers
            ),
            source,
        )

    def ordinary(self, **headers: str) -> None:
        """It still answers."""
        status, _, found = self.ask({"text": TEXT}, **headers)
        assert status == 200, found
        assert len(found["scores"]) == 4

    def end(self, sig: int) -> int:
        self.process.send_signal(sig)
        self.said = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def request(method: str, path: str, body: bytes, **headers: str) -> bytes:
    lines = {"host": "a", "content-length": str(len(body)), **headers}
    return (
        f"{method} {path} HTTP/1.1\r\n".encode()
        + b"".join(f"{a}: {b}\r\n".encode() for a, b in lines.items())
        + b"\r\n"
        + body
    )


def read_answer(wire: socket.socket) -> tuple[int, dict[str, str], Any]:
    with wire.makefile("rb") as reader:
        first = reader.readline().split()
        if not first:
            raise ConnectionResetError("no answer")
        headers: dict[str, str] = {}
        while line := reader.readline().strip():
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        body = reader.read(int(headers["content-length"])) if "content-length" in headers else reader.read()
    return (
        int(first[1]),
        headers,
        json.loads(body) if "json" in headers.get("content-type", "") else body.decode(),
    )


def ended(wire: socket.socket) -> bool:
    """The other side closed it, after whatever it still said."""
    try:
        while wire.recv(2**16):
            pass
    except ConnectionError:
        pass
    return True
