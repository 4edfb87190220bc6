"""The service under load: `holdfast monitor serve`, queried by many clients over loopback.

python -m benchmarks.service      one worker and two, over HTTP and over websockets; then malformed requests

Every client keeps one connection. Over HTTP it requests scores of help desk sentences, now and final in turn;
over a websocket it sends the words of such sentences one by one. Every answer is compared with the library's
own
scores: numbers within TOLERANCE, everything else equal. The client is a few lines on bare sockets; its CPU
share is printed, since it runs on the same machine. Then follow malformed bodies, broken requests and
half-open connections, after which the service must still answer, and exit with 0 when it is stopped.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.datasets import helpdesk
from holdfast.monitor import Groups, Monitor
from holdfast.monitor.service.json_messages import score_json, scores_json

HOST = "127.0.0.1"
START = 90.0  # Seconds until the process must listen; it imports torch first.
PATIENCE = 60.0  # Seconds after which an answer counts as missing.
TOLERANCE = 1e-12  # Allowed difference of a number: sums of the same probabilities, alone or in a batch.
CODE = "import torch; torch.set_num_threads(1); from holdfast.cli import main; main()"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def request(body: bytes) -> bytes:
    return (
        b"POST /score HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        % len(body)
        + body
    )


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Read one HTTP response with a content-length; return its status and body."""
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    length = next(int(line.partition(":")[2]) for line in lines if line.lower().startswith("content-length"))
    return int(lines[0].split()[1]), await reader.readexactly(length)


async def over_http(port: int, asked: list[int]) -> AsyncIterator[tuple[float, Any]]:
    """Send requests one after the other on one connection. Returns the seconds of each, and its error, if
    any.
    """
    reader, writer = await asyncio.open_connection(HOST, port)
    for number in asked:
        body, wanted = question(number)
        began = time.perf_counter()
        writer.write(request(body))
        status, said = await asyncio.wait_for(answer(reader), PATIENCE)
        yield time.perf_counter() - began, None if status == 200 and agrees(said, wanted) else status
    writer.close()


HANDSHAKE = (
    b"GET /stream HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


async def over_a_stream(port: int, asked: list[int]) -> AsyncIterator[tuple[float, Any]]:
    """Send the words of sentences one by one; the reset before each sentence is not counted."""
    reader, writer = await asyncio.open_connection(HOST, port)
    writer.write(HANDSHAKE)
    await reader.readuntil(b"\r\n\r\n")
    sentence, left = asked[0], []
    for _ in asked:
        if not left:
            writer.write(frame(b'{"reset": true}'))
            await message(reader)
            sentence += 1
            left = list(words(sentence % len(texts())))
        sent, wanted = left.pop(0)
        began = time.perf_counter()
        writer.write(frame(sent))
        said = await asyncio.wait_for(message(reader), PATIENCE)
        yield time.perf_counter() - began, None if agrees(said, wanted) else "wrong"
    writer.close()


def frame(text: bytes) -> bytes:
    """A websocket frame of a short text, with a mask of zeros, which leaves it unchanged."""
    assert len(text) < 126
    return bytes([0x81, 0x80 | len(text), 0, 0, 0, 0]) + text


async def message(reader: asyncio.StreamReader) -> bytes:
    """The next text frame. Pings are ignored, since a run ends before the service misses a pong."""
    while True:
        kind, size = await reader.readexactly(2)
        length = int.from_bytes(await reader.readexactly(2)) if size == 126 else size
        body = await reader.readexactly(length)
        if kind == 0x81:
            return body


# ---- the library's own scores


@cache
def monitor() -> Monitor:
    net = helpdesk.network()
    return Monitor.fit(net, [], Groups.of_sets(helpdesk.sets(), vocabulary=net.vocabulary), unknown="unk")


@cache
def texts() -> tuple[str, ...]:
    return helpdesk.sentences("test").text


def question(number: int) -> tuple[bytes, str]:
    """The body of a request, and the key of its expected answer."""
    place, k = number // 2 % len(texts()), "final" if number % 2 else 0
    return _question(place, k)


@cache
def _question(place: int, k: Any) -> tuple[bytes, str]:
    scores = monitor().score(texts()[place].split(), k=k)
    return json.dumps({"text": texts()[place], "k": k}).encode(), json.dumps(scores_json(scores))


@cache
def words(place: int) -> tuple[tuple[bytes, str], ...]:
    own = monitor().stream()
    return tuple(
        (json.dumps(word).encode(), json.dumps(score_json(own.step(word)))) for word in texts()[place].split()
    )


@cache
def agrees(said: bytes, wanted: str) -> bool:
    """Whether an answer is as expected.

    Cached, so that equal bytes are parsed once and the client stays cheap.
    """
    return same(json.loads(said), json.loads(wanted))


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float | int):
        return abs(one - other) <= TOLERANCE
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


# ---- load


async def load(ask: Any, port: int, requests: int, clients: int) -> tuple[np.ndarray, Counter[Any], float]:
    """Seconds of each answer, the wrong ones, and the seconds of the whole load."""
    seconds: list[float] = []
    wrong: Counter[Any] = Counter()

    async def one(asked: list[int]) -> None:
        try:
            async for spent, error in ask(port, asked):
                seconds.append(spent)
                wrong.update([] if error is None else [error])
        except (OSError, EOFError, TimeoutError, asyncio.IncompleteReadError) as error:
            wrong[type(error).__name__] += 1

    began = time.perf_counter()
    await asyncio.gather(*(one(list(range(start, requests, clients))) for start in range(clients)))
    return np.array(seconds), wrong, time.perf_counter() - began


def malformed(count: int, seed: int) -> Iterator[bytes]:
    """Valid bodies with bytes changed, dropped or doubled, and JSON of the wrong shape."""
    draw = random.Random(seed)
    values = [
        None,
        True,
        -1,
        1e308,
        "",
        "a" * 3000,
        [],
        {},
        [[]],
        [None],
        ["a", 1],
        [[1, [2]]],
        {"a": 1},
        "\ud800",
        2**70,
        [1] * 600,
    ]
    for _ in range(count):
        if draw.random() < 0.5:
            keys = draw.sample(["text", "sequence", "k", "other"], draw.randint(0, 3))
            yield json.dumps({key: draw.choice(values) for key in keys}).encode()
            continue
        body = bytearray(json.dumps({"text": "please cancel my order", "k": 0}).encode())
        for _ in range(draw.randint(1, 6)):
            place = draw.randrange(len(body))
            body[place : place + draw.randint(0, 3)] = draw.randbytes(draw.randint(0, 3))
        yield bytes(body)


RAW = (
    b"",
    b"\x00" * 4000,
    b"GET / HTTP/9.9\r\n\r\n",
    b"POST /score HTTP/1.1\r\nhost: a\r\ncontent-length: 50\r\n\r\nhalf",
    b"POST /score HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n",
    b"POST /score HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"GET /stream HTTP/1.1\r\nhost: a\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
    b"A" * 100_000,
)


async def fuzz(port: int, count: int, seed: int) -> Counter[int]:
    """Statuses of malformed bodies. Raw garbage is sent in between, each on a connection of its own."""
    statuses: Counter[int] = Counter()
    for number, body in enumerate(malformed(count, seed)):
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(request(body))
        statuses[(await asyncio.wait_for(answer(reader), PATIENCE))[0]] += 1
        writer.close()
        if number % 50 == 0:
            for raw in RAW:
                _, wire = await asyncio.open_connection(HOST, port)
                wire.write(raw)
                wire.close()
    return statuses


def started(port: int, workers: int) -> "subprocess.Popen[str]":
    around = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [
        sys.executable,
        "-c",
        CODE,
        "monitor",
        "serve",
        "--port",
        str(port),
        "--workers",
        str(workers),
        "--rate",
        "0",
    ]
    process = subprocess.Popen(command, env=around, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + START
    while time.monotonic() < until and process.poll() is None:
        if listens(port, workers):
            return process
        time.sleep(0.2)
    process.kill()
    raise SystemExit(f"the service did not start: {process.communicate()[1]}")


def listens(port: int, workers: int) -> bool:
    """Whether all workers listen."""
    try:
        with socket.create_connection((HOST, port), timeout=5) as wire:
            wire.sendall(b"GET /metrics HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
            return f"holdfast_workers {workers}\n".encode() in b"".join(iter(lambda: wire.recv(2**16), b""))
    except OSError:
        return False


def of_all(process: int) -> list[int]:
    """Ids of a process and of its descendants (Linux)."""
    return [process, *map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())]


def cpu_seconds(process: int) -> float:
    """CPU seconds that a service has used, its workers included (Linux)."""
    rows = [Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split() for one in of_all(process)]
    return sum(int(fields[11]) + int(fields[12]) for fields in rows) / os.sysconf("SC_CLK_TCK")


def ended(process: "subprocess.Popen[str]") -> str:
    """Stop the service. Returns what went wrong, or an empty text."""
    process.send_signal(signal.SIGTERM)
    try:
        _, said = process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        return "it did not end"
    return "" if process.returncode == 0 and not said else f"ended with {process.returncode}: {said[-2000:]}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--malformed", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    for number in range(2 * len(texts())):
        question(number)
        words(number % len(texts()))
    print(f"load of the machine before: {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores\n")
    print(
        "| workers | over | requests | clients | wrong | p50 ms | p99 ms | slowest ms | requests/s | "
        "service: CPU ms each | client: cores |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    failed = False
    for workers in chosen.workers:
        port = free_port()
        process = started(port, workers)
        try:
            for name, ask in (("HTTP", over_http), ("websocket", over_a_stream)):
                asyncio.run(load(ask, port, 400, chosen.clients))  # Warm up.
                before, own = cpu_seconds(process.pid), time.process_time()
                seconds, wrong, spent = asyncio.run(load(ask, port, chosen.requests, chosen.clients))
                each, share = (
                    1e3 * (cpu_seconds(process.pid) - before) / chosen.requests,
                    (time.process_time() - own) / spent,
                )
                p50, p99, worst = 1e3 * np.percentile(seconds, (50, 99, 100))
                count = sum(wrong.values()) + chosen.requests - len(seconds)
                rate = len(seconds) / spent
                shown = (
                    f"{count} | {p50:.1f} | {p99:.1f} | {worst:.1f} | {rate:.0f} | {each:.2f} | {share:.2f}"
                )
                print(f"| {workers} | {name} | {chosen.requests} | {chosen.clients} | {shown} |", flush=True)
                failed = failed or count > 0
            refused = (
                asyncio.run(fuzz(port, chosen.malformed, chosen.seed))
                if workers == chosen.workers[-1]
                else None
            )
            after, still, _ = asyncio.run(load(over_http, port, 100, 4))
            failed = failed or len(after) != 100 or bool(still)
        finally:
            crashed = ended(process)
        failed = failed or bool(crashed)
        print(crashed, end="")
    if refused is not None:
        told = ", ".join(f"{status}: {count}" for status, count in sorted(refused.items()))
        print(
            f"\n{chosen.malformed} malformed bodies: {told} (200 where the change left a valid body); all "
            "of 100 answered after them"
        )
        failed = failed or any(status >= 500 for status in refused)
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
