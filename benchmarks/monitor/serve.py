"""The service under load: `holdfast monitor serve` as a process of its own, asked by many clients over loopback.

Every client keeps one connection and asks for the scores of help desk sentences, now and final in turn. Then malformed bodies, broken
requests and half-open connections; after them the service must still answer, and stop when it is told to.
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
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from holdfast.datasets import helpdesk

HOST = "127.0.0.1"
START = 60.0  # seconds for the process to listen
PATIENCE = 30.0  # seconds for one answer
CODE = "import torch; torch.set_num_threads(1); from holdfast.cli import main; main()"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def request(body: bytes) -> bytes:
    return b"POST /score HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """One HTTP answer with a content-length -> status, body."""
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    length = next(int(line.partition(":")[2]) for line in lines if line.lower().startswith("content-length"))
    return int(lines[0].split()[1]), await reader.readexactly(length)


async def client(port: int, bodies: list[bytes], seconds: list[float], statuses: Counter[object]) -> None:
    """Asks one question after the other on one connection."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        for body in bodies:
            began = time.perf_counter()
            writer.write(request(body))
            try:
                status, said = await asyncio.wait_for(answer(reader), PATIENCE)
                statuses[status if json.loads(said)["scores"] else "empty"] += 1
            except Exception as error:  # whatever it is, it is counted as an error
                statuses[type(error).__name__] += 1
                return
            seconds.append(time.perf_counter() - began)
    finally:
        writer.close()


async def load(port: int, requests: int, clients: int) -> tuple[np.ndarray, Counter[object], float]:
    texts = helpdesk.sentences("test").text
    bodies = [json.dumps({"text": texts[i % len(texts)], "k": "final" if i % 2 else 0}).encode() for i in range(requests)]
    seconds: list[float] = []
    statuses: Counter[object] = Counter()
    began = time.perf_counter()
    await asyncio.gather(*(client(port, bodies[start::clients], seconds, statuses) for start in range(clients)))
    return np.array(seconds), statuses, time.perf_counter() - began


def malformed(count: int, seed: int) -> Iterator[bytes]:
    """Good questions with bytes changed, dropped or doubled, and JSON of the wrong shape."""
    draw = random.Random(seed)
    values = [None, True, -1, 1e308, "", "a" * 3000, [], {}, [[]], [None], ["a", 1], [[1, [2]]], {"a": 1}, "\ud800", 2**70, [1] * 600]
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
    b"", b"\x00" * 4000, b"GET / HTTP/9.9\r\n\r\n", b"POST /score HTTP/1.1\r\nhost: a\r\ncontent-length: 50\r\n\r\nhalf",
    b"POST /score HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n",
    b"POST /score HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"GET /stream HTTP/1.1\r\nhost: a\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n", b"A" * 100_000,
)  # fmt: skip


async def fuzz(port: int, count: int, seed: int) -> Counter[int]:
    """-> the statuses of malformed bodies; raw garbage goes in between, each on a connection of its own."""
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


def started(port: int) -> "subprocess.Popen[str]":
    around = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CODE, "monitor", "serve", "--port", str(port)]
    process = subprocess.Popen(command, env=around, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + START
    while time.monotonic() < until and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                return process
        time.sleep(0.1)
    process.kill()
    raise SystemExit(f"the service did not start: {process.communicate()[1]}")


def cpu_seconds(process: int) -> float:
    """What a process has computed so far, whatever else the machine does (Linux)."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--malformed", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)


def main(chosen: argparse.Namespace) -> None:
    port = free_port()
    process = started(port)
    try:
        asyncio.run(load(port, 200, 4))  # warm
        before = cpu_seconds(process.pid)
        seconds, statuses, spent = asyncio.run(load(port, chosen.requests, chosen.clients))
        worked = cpu_seconds(process.pid) - before
        refused = asyncio.run(fuzz(port, chosen.malformed, chosen.seed))
        after, good, _ = asyncio.run(load(port, 100, 4))
        process.send_signal(signal.SIGTERM)
        code = process.wait(20)
    finally:
        process.kill()
        _, said = process.communicate()
    errors = chosen.requests - statuses[200]
    p50, p99, worst = 1e3 * np.percentile(seconds, (50, 99, 100))
    print("| requests | clients | errors | p50 ms | p99 ms | slowest ms | requests a second | CPU ms of the service a request |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    rates = f"{chosen.requests / spent:.0f} | {1e3 * worked / chosen.requests:.2f}"
    print(f"| {chosen.requests} | {chosen.clients} | {errors} | {p50:.1f} | {p99:.1f} | {worst:.1f} | {rates} |\n")
    told = ", ".join(f"{status}: {count}" for status, count in sorted(refused.items()))
    crashed = "Traceback" in said or code not in (0, -signal.SIGTERM)
    print(
        f"{chosen.malformed} malformed bodies: {told} (200 where the change left a sound question); {good[200]} of 100 answered after them;"
    )
    print(f"stopped by SIGTERM with {code}; {'CRASHED: ' + said[-2000:] if crashed else 'no traceback in its log'}")
    if errors or crashed or good[200] != len(after) or any(status >= 500 for status in refused):
        raise SystemExit(1)
