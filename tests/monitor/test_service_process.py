"""The service as a process, under attack: each limit is reached by a client that really does it, and afterwards it still answers."""

import contextlib
import json
import os
import signal
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from service_process import PATIENCE, TEXT, Running, ended, read_answer, request

from holdfast.monitor.service.rates import MOST_ADDRESSES, RateLimiter

for package in ("fastapi", "uvicorn", "websockets"):
    pytest.importorskip(package, reason=f"{package} is not installed: pip install 'holdfast[serve]'")
if sys.platform != "linux":
    pytest.skip(
        "clients come from several addresses of this machine, which only Linux has", allow_module_level=True
    )
connect = pytest.importorskip("websockets.sync.client").connect
ConnectionClosed = pytest.importorskip("websockets.exceptions").ConnectionClosed
InvalidStatus = pytest.importorskip("websockets.exceptions").InvalidStatus

SECRET = "xylographer"  # a word that no file of ours holds in its code
LONG = " ".join(["please"] * 512)
LIMITS: dict[str, Any] = {
    "--max-body": 8192, "--max-length": 512, "--max-depth": 6, "--max-streams": 3, "--max-connections": 40, "--reading": 1.5,
    "--writing": 0.5, "--idle": 1, "--rate": 100, "--burst": 40, "--lingering": 3, "--closing": 8,
}  # fmt: skip
TOKEN = "a-token-of-more-than-sixteen-signs"
BEARER = {"authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    made = Running(*(part for pair in LIMITS.items() for part in pair))
    try:
        made.wait()
        yield made
    finally:
        made.kill()


def stream(service: Running, source: str, **more: Any) -> Any:
    wire = service.connect(source)
    wire.settimeout(None)
    return connect(f"ws://127.0.0.1:{service.port}/stream", sock=wire, **more)


@contextlib.contextmanager
def stream_when_free(service: Running, source: str) -> Iterator[Any]:
    """A stream, once the service has closed those of the tests before."""
    for _ in range(6000):
        try:
            opened = stream(service, source).__enter__()
            break
        except InvalidStatus:
            time.sleep(0.1)
    else:
        pytest.fail("no stream is free")
    with opened:
        yield opened


def drip(wire: socket.socket, part: bytes, times: int, pause: float = 0.0) -> None:
    for _ in range(times):
        wire.sendall(part)
        time.sleep(pause)


# ---- time


def test_a_head_that_never_ends_is_not_waited_for(service: Running) -> None:
    with (
        service.connect("127.0.0.2") as silent,
        service.connect("127.0.0.2") as half,
        service.connect("127.0.0.2") as again,
    ):
        half.sendall(b"POST /score HTTP/1.1\r\nho")
        again.sendall(request("GET", "/live", b""))
        assert read_answer(again)[0] == 200
        again.sendall(b"GET /li")  # the next request of a connection that was good
        assert ended(silent)
        assert ended(half)
        assert ended(again)
    service.ordinary()


def test_bytes_that_drip_do_not_keep_a_head_open(service: Running) -> None:
    with service.connect("127.0.0.2") as wire:
        wire.sendall(b"GET /live HTTP/1.1\r\n")
        with pytest.raises(ConnectionError):
            drip(wire, b"x", 200, 0.05)
    service.ordinary()


def test_a_body_that_never_ends_is_not_waited_for(service: Running) -> None:
    with service.connect("127.0.0.2") as wire:
        wire.sendall(b"POST /score HTTP/1.1\r\nhost: a\r\ncontent-length: 99\r\n\r\nhalf")
        assert read_answer(wire)[0] == 408
        assert ended(wire)
    with service.connect(
        "127.0.0.2"
    ) as wire:  # a body where none is read: answered at once, and the rest not taken
        wire.sendall(b"POST /live HTTP/1.1\r\nhost: a\r\ncontent-length: 9999\r\n\r\nhalf")
        assert read_answer(wire)[0] == 405
        wire.sendall(b"more")
        assert ended(wire)
    service.ordinary()


ESTABLISHED = "01"  # The state of an open connection in /proc/net/tcp.


def is_established(service_port: int, client_port: int) -> bool:
    """Whether the service has its end of this connection open."""
    ends = [line.split()[1:4] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(
        state == ESTABLISHED
        and int(local.split(":")[1], 16) == service_port
        and int(remote.split(":")[1], 16) == client_port
        for local, remote, state in ends
    )


def test_an_answer_that_nobody_reads_is_dropped(service: Running) -> None:
    """Small segments and a small buffer, so that the system cannot hide the answers away."""
    small = [(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536), (socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)]
    asked = request("POST", "/score", json.dumps({"text": LONG}).encode())
    with service.connect("127.0.0.3", small) as wire:
        wire.sendall(asked * 8)
        while is_established(
            service.port, wire.getsockname()[1]
        ):  # it reads nothing until the service gives up
            time.sleep(0.05)
        taken = 0
        try:
            while part := wire.recv(2**16):
                taken += len(part)
        except ConnectionError:
            pass
    whole = len(json.dumps(service.ask({"text": LONG}, "127.0.0.1")[2]))
    assert 0 < taken < 8 * whole * 0.8
    service.ordinary()


def test_a_quiet_connection_is_closed(service: Running) -> None:
    with service.connect("127.0.0.2") as wire:
        wire.sendall(request("GET", "/live", b""))
        assert read_answer(wire)[0] == 200
        assert ended(wire)
    with stream(service, "127.0.0.2") as quiet, pytest.raises(ConnectionClosed) as closed:
        quiet.recv(timeout=PATIENCE)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1001
    service.ordinary()


def test_a_client_that_leaves_before_its_answer_harms_nobody(service: Running) -> None:
    for _ in range(10):
        with service.connect(
            "127.0.0.4", [(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))]
        ) as wire:
            wire.sendall(request("POST", "/score", json.dumps({"text": LONG}).encode()))
    service.ordinary()


# ---- size


def test_bodies_have_a_limit_whether_or_not_they_say_their_length(service: Running) -> None:
    assert service.ask(b"x" * 8193, "127.0.0.5")[0] == 413
    with service.connect("127.0.0.5") as wire:
        wire.sendall(b"POST /score HTTP/1.1\r\nhost: a\r\ncontent-length: 100000000000\r\n\r\n")
        assert read_answer(wire)[0] == 413
    with service.connect("127.0.0.5") as wire:
        wire.sendall(b"POST /score HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
        with pytest.raises(ConnectionError):
            drip(wire, b"1000\r\n" + b"x" * 4096 + b"\r\n", 10_000)  # 40 MB, if anybody took them
    with service.connect("127.0.0.5") as wire:
        wire.sendall(b"GET /live HTTP/1.1\r\nhost: a\r\nlong: " + b"x" * 30_000)
        assert read_answer(wire)[0] == 400
    service.ordinary()


WRONG: list[tuple[bytes, int]] = [
    (b"[" * 4000, 422), (b'{"a":' * 1000, 422), (b'{"sequence": [[[[[[[1.0]]]]]]]}', 422), (b"\xff\xfe\x00", 400),
    (b'{"text": "\xc3\x28"}', 400),
    (b'{"text": 3}', 422), (b'{"sequence": {"a": 1}}', 422), (b'{"text": "a", "k": []}', 422), (b'{"text": "[[[[[[[["', 400), (b"", 400),
]  # fmt: skip


@pytest.mark.parametrize(("body", "status"), WRONG, ids=lambda part: repr(part)[:20])
def test_nonsense_is_refused_with_a_reason(service: Running, body: bytes, status: int) -> None:
    found = service.ask(body, "127.0.0.6")
    assert found[0] == status
    assert 10 < len(found[2]["error"]) < 500
    service.ordinary()


def test_brackets_in_a_text_are_no_depth(service: Running) -> None:
    assert service.ask({"text": '[[[[[[[[ {{{{{{{{ please \\" ]]'}, "127.0.0.6")[0] == 200


# ---- number


def test_an_address_that_asks_too_often_is_told_when_to_come_back(service: Running) -> None:
    answers = []
    with service.connect("127.0.0.7") as wire:
        for _ in range(60):
            wire.sendall(request("GET", "/health", b""))
            answers.append(read_answer(wire))
    refused = [answer for answer in answers if answer[0] == 429]
    assert refused
    assert {status for status, _, _ in answers} == {200, 429}
    assert all(int(headers["retry-after"]) >= 1 for _, headers, _ in refused)
    assert "try again" in refused[0][2]["error"]
    assert service.get("/live", "127.0.0.7")[0] == 200  # a probe is never refused
    service.ordinary()


def test_a_flood_on_a_stream_is_slowed_down_and_nothing_is_lost(service: Running) -> None:
    with stream(service, "127.0.0.8") as flooding:
        for _ in range(120):
            flooding.send('"please"')
        service.ordinary()
        found = [json.loads(flooding.recv(timeout=PATIENCE)) for _ in range(120)]
        assert all("value" in answer for answer in found)
        flooding.send("x" * 9000)
        with pytest.raises(ConnectionClosed) as closed:
            flooding.recv(timeout=PATIENCE)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1009  # too big
    service.ordinary()


def test_streams_and_connections_have_a_limit(service: Running) -> None:
    with contextlib.ExitStack() as streams:
        for _ in range(3):
            streams.enter_context(stream_when_free(service, "127.0.0.9"))
        with pytest.raises(InvalidStatus) as refused, stream(service, "127.0.0.9"):
            pass
        assert refused.value.response.status_code == 503
        assert "too many streams" in json.loads(refused.value.response.body or b"")["error"]
    crowd = [service.connect("127.0.0.9") for _ in range(120)]
    assert all(map(ended, crowd))  # none of them said anything
    service.ordinary()


def test_probes_are_answered_however_many_connections_are_held() -> None:
    """A client that holds on to all it gets shuts out itself; many clients shut out others, but never a probe."""
    limits = {"--max-connections": 40, "--max-connections-each": 25, "--reading": 600, "--idle": 600}
    service = Running(*(part for pair in limits.items() for part in pair))
    try:
        service.wait()
        dripping = [service.connect("127.0.0.9") for _ in range(60)]
        for wire in dripping[:25]:
            wire.sendall(b"GET /live HTTP/1.1\r\nslow")
        assert all(
            map(ended, dripping[25:])
        )  # beyond its share: cut off, the first few once they had said nothing for a moment
        service.ordinary()
        status, headers, said = service.ask({"text": TEXT}, "127.0.0.9")
        assert (status, headers["content-type"]) == (503, "application/json")
        assert "too many connections" in said["error"]
        with pytest.raises(InvalidStatus) as refused, stream(service, "127.0.0.9"):
            pass
        assert refused.value.response.status_code == 503
        assert service.get("/live", "127.0.0.9")[0] == 200
        more = [service.connect("127.0.0.12") for _ in range(15)]
        for _ in range(
            20
        ):  # more often than there are reserved connections from one address: each is given back
            assert service.get("/live")[0] == service.get("/ready")[0] == 200
        assert service.ask({"text": TEXT})[0] == 503
        for wire in (*dripping, *more):
            wire.close()
        for _ in range(6000):
            if service.ask({"text": TEXT})[0] == 200:
                break
            time.sleep(0.05)
        service.ordinary()
        assert service.raw(b"no http\r\n\r\n")[2] == {"error": "Invalid HTTP request received."}
    finally:
        service.kill()


def test_the_service_answers_probes_while_it_reads_the_worst_bodies(service: Running) -> None:
    """Bodies of escaped quotes, which took seconds each, and a word of a hundred thousand signs."""
    for body in (b'\\"' * 4000, b'"' + b'\\"' * 4000, json.dumps({"text": "." * 8000}).encode()):
        wires = [service.connect("127.0.0.15") for _ in range(4)]
        for wire in wires:
            wire.sendall(request("POST", "/score", body))
        assert service.get("/live", "127.0.0.16")[0] == 200
        assert {read_answer(wire)[0] for wire in wires} <= {200, 400, 422}
        for wire in wires:
            wire.close()


def test_a_bucket_fills_at_its_rate() -> None:
    now = 0.0
    rates = RateLimiter(10, 3, lambda: now)
    assert [rates.take("1.2.3.4") for _ in range(3)] == [0, 0, 0]
    assert rates.take("1.2.3.4") == pytest.approx(0.1)
    assert rates.take("1.2.3.5") == 0
    now = 0.1
    assert rates.take("1.2.3.4") == 0
    assert rates.take("1.2.3.4") > 0
    now = 100.0
    assert [rates.take("1.2.3.4") > 0 for _ in range(4)] == [False, False, False, True]
    assert [rates.take(f"2001:db8::{n}") > 0 for n in range(4)] == [False, False, False, True]  # one network
    for n in range(MOST_ADDRESSES + 5):
        rates.take(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}")
    assert len(rates._buckets) == MOST_ADDRESSES
    assert not any(RateLimiter(0, 1).take("1.2.3.4") for _ in range(10))


# ---- what is said, and the end


def test_no_text_is_logged_or_counted_and_the_service_ends_without_losing_a_request(service: Running) -> None:
    """The last of its module: /ready says no, what was begun is finished, what is new is refused, and the process ends with 0."""
    for body in (
        {"text": f"please {SECRET}"},
        {"sequence": [SECRET, 1]},
        {SECRET: 1},
        f'{{"text": "{SECRET}'.encode(),
        SECRET.encode(),
    ):
        service.ask(body, "127.0.0.10")
    service.get(f"/{SECRET}?{SECRET}={SECRET}", "127.0.0.10", authorization=SECRET)
    service.raw(SECRET.encode() + b"\r\n\r\n", "127.0.0.10")
    with stream(service, "127.0.0.10") as told:
        for message in (json.dumps(SECRET), SECRET, json.dumps({SECRET: 1}), SECRET.encode() + b"\xff"):
            told.send(message)
            told.recv(timeout=PATIENCE)
    with service.connect("127.0.0.11") as wire:  # invalid UTF-8 in a frame that says it is text
        wire.sendall(request("GET", "/stream", b"", connection="upgrade", upgrade="websocket", **HANDSHAKE))
        assert b" 101 " in wire.recv(2**12)
        wire.sendall(b"\x81\x8c\x00\x00\x00\x00" + SECRET.encode() + b"\xff")
        assert ended(wire)
    _, _, metrics = service.get("/metrics")
    assert SECRET not in metrics
    assert 'holdfast_requests_total{path="/score",status="413"}' in metrics
    body = json.dumps({"text": TEXT}).encode()
    with service.connect() as wire:
        wire.sendall(request("POST", "/score", body)[: -len(body)])
        time.sleep(0.2)
        service.process.send_signal(signal.SIGTERM)
        while service.get("/ready")[0] == 200:
            time.sleep(0.05)
        assert service.get("/live")[0] == 200
        status, _, said = service.ask({"text": TEXT})
        assert status == 503
        assert "stopping" in said["error"]
        wire.sendall(body)
        assert len(read_answer(wire)[2]["scores"]) == 4
    out, err = service.process.communicate(timeout=PATIENCE)
    assert service.process.returncode == 0
    assert SECRET not in out + err
    assert "Traceback" not in err
    with pytest.raises(ConnectionRefusedError):
        service.get("/ready")


HANDSHAKE = {"sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==", "sec-websocket-version": "13"}


# ---- two workers, a token, TLS


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder: Path = tmp_path_factory.mktemp("tls")
    (folder / "token").write_text(TOKEN + "\n")
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    kind = [
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-keyout",
        "key.pem",
        "-out",
        "cert.pem",
    ]
    try:
        subprocess.run(
            ["openssl", "req", "-x509", "-days", "2", *kind, *names],
            cwd=folder,
            check=True,
            capture_output=True,
        )
    except FileNotFoundError:
        pytest.skip("no openssl here to make a certificate")
    trusted = ssl.create_default_context(cafile=str(folder / "cert.pem"))
    files = (
        "--token-file",
        folder / "token",
        "--certificate",
        folder / "cert.pem",
        "--certificate-key",
        folder / "key.pem",
    )
    made = Running("--workers", 2, *files, "--lingering", 0.2, scheme=trusted)
    try:
        made.wait()
        yield made
    finally:
        made.kill()


def test_without_the_token_nothing_is_answered(guarded: Running) -> None:
    for given in (
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": TOKEN},
        {"authorization": f"Bearer {TOKEN}x"},
    ):
        status, headers, said = guarded.ask({"text": TEXT}, "127.0.0.1", **given)
        assert status == 401
        assert headers["www-authenticate"] == "Bearer"
        assert "token" in said["error"]
    assert guarded.get("/metrics")[0] == guarded.get("/health")[0] == guarded.get("/nothing")[0] == 401
    assert guarded.get("/live")[0] == guarded.get("/ready")[0] == 200
    guarded.ordinary(**BEARER)
    with (
        pytest.raises(InvalidStatus) as refused,
        connect(f"ws://localhost:{guarded.port}/stream", sock=guarded.connect()),
    ):
        pass
    assert refused.value.response.status_code == 401
    with connect(
        f"ws://localhost:{guarded.port}/stream", sock=guarded.connect(), additional_headers=BEARER
    ) as told:
        told.send('"please"')
        assert 0 <= json.loads(told.recv(timeout=PATIENCE))["value"] <= 1


def numbers(service: Running) -> dict[str, float]:
    text = service.get("/metrics", **BEARER)[2]
    return {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if not line.startswith("#")
    }


def test_workers_count_together_and_one_that_dies_is_replaced(guarded: Running) -> None:
    for _ in range(6000):
        if numbers(guarded)["holdfast_workers"] == 2:
            break
        time.sleep(0.1)
    before = numbers(guarded)["holdfast_elements_scored_total"]
    for _ in range(12):
        guarded.ordinary(**BEARER)
    assert numbers(guarded)["holdfast_elements_scored_total"] == before + 48
    children = Path(f"/proc/{guarded.process.pid}/task/{guarded.process.pid}/children").read_text().split()
    workers = [
        int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]
    assert len(workers) == 2
    os.kill(workers[0], signal.SIGKILL)
    seen = set()
    for _ in range(6000):
        try:
            seen.add(numbers(guarded)["holdfast_workers"])
        except OSError:  # a connection that the dead one had been dealt
            continue
        if seen == {1, 2} and numbers(guarded)["holdfast_workers"] == 2:
            break
        time.sleep(0.1)
    assert seen == {1, 2}
    guarded.ordinary(**BEARER)
    assert guarded.end(signal.SIGTERM) == 0
    assert guarded.said is not None
    assert TOKEN not in "".join(guarded.said)
    assert "it is restarted" in guarded.said[1]
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
