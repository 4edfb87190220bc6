"""The service: what it answers, what it refuses, and that nothing a client sends makes it fall over."""

import asyncio
import io
import itertools
import json
import logging
import random
import re
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.datasets import helpdesk
from holdfast.errors import BadInput, MissingExtra
from holdfast.monitor import Groups, Monitor, Noise
from holdfast.monitor.service import serve
from holdfast.monitor.service.batching import RequestBatcher
from holdfast.monitor.service.json_messages import STRING, _depth, read_question
from holdfast.monitor.service.limits import Limits
from holdfast.monitor.service.logs import MessageFreeFormatter, log
from holdfast.monitor.service.serve import INLINE_BYTES, app
from holdfast.network import Network

for package in ("fastapi", "uvicorn", "websockets", "httpx"):
    pytest.importorskip(package, reason=f"{package} is not installed: pip install 'holdfast[serve]' httpx")
TestClient = pytest.importorskip("fastapi.testclient").TestClient
WebSocketDenialResponse = pytest.importorskip("starlette.testclient").WebSocketDenialResponse
connect = pytest.importorskip("websockets.sync.client").connect
ConnectionClosed = pytest.importorskip("websockets.exceptions").ConnectionClosed

protocols = pytest.importorskip("holdfast.monitor.service.protocols")
RESERVED, RESERVED_EACH, Connections = (
    protocols.RESERVED_CONNECTIONS,
    protocols.RESERVED_EACH,
    protocols.Connections,
)

SOURCE = Path(__file__).resolve().parents[2] / "src"
TEXT = "please cancel my subscription"


@pytest.fixture(scope="module")
def monitor() -> Monitor:
    net = helpdesk.network()
    sets = Groups.of_sets(helpdesk.sets(), vocabulary=net.vocabulary)
    return Monitor.fit(net, helpdesk.sentences("train").tokens[:5], sets, unknown="unk")


@pytest.fixture(scope="module")
def client(monitor: Monitor) -> Iterator[TestClient]:
    with TestClient(
        app(monitor, Limits(body=4096, length=12, streams=2)), raise_server_exceptions=False
    ) as made:
        yield made


def test_a_text_gets_the_scores_of_the_monitor(client: TestClient, monitor: Monitor) -> None:
    for k in (0, 2, "final"):
        answer = client.post("/score", json={"text": TEXT, "k": k})
        truth = monitor.score(TEXT.split(), k=k)
        assert answer.status_code == 200
        found = answer.json()
        assert [row["element"] for row in found["scores"]] == TEXT.split()
        assert [row["value"] for row in found["scores"]] == [
            None if v != v else v for v in truth.values.tolist()
        ]
        assert (found["least"], found["most"], found["k"]) == (truth.least, truth.most, k)
        assert found["evidence"]["kind"] == "proved"
        assert ("attack_success" in found) == (k == "final")


def test_words_ids_and_text_are_the_same_question(client: TestClient) -> None:
    asked = (
        {"text": "Please cancel my subscription!"},
        {"sequence": TEXT.split()},
        {"sequence": helpdesk.tokens(TEXT).tolist()},
    )
    answers = [client.post("/score", json=body).json() for body in asked]
    assert (answers[0].pop("unknown"), answers[0].pop("left_out")) == (0, 1)  # the sign
    assert answers[0] == answers[1] == answers[2]


def test_frames_are_scored_by_draws() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            answer: torch.Tensor = self.head(self.lstm(x)[0][:, -1])
            return answer

    net = Network.from_torch(Reader().eval(), shape=(None, 3))  # type: ignore[arg-type]
    made = Monitor.fit(net, [], Noise(0.5), samples=50)
    with TestClient(app(made), raise_server_exceptions=False) as client:
        found = client.post("/score", json={"sequence": [[0.1, 0.2, 0.3], [1, 2, 3]]}).json()
        assert found["evidence"]["kind"] == "sampled"
        assert [row["support"] for row in found["scores"]] == [50, 50]
        for bad in ([[1, 2]], [[[]]], ["word"], [1, 2], [[1e39, 0.0, 0.0]], [0.5]):
            assert client.post("/score", json={"sequence": bad}).status_code == 422, bad
        with client.websocket_connect("/stream") as stream:
            stream.send_json([0.1, 0.2, 0.3])
            assert 0 <= stream.receive_json()["value"] <= 1


NONSENSE: list[bytes] = [
    b"", b"{", b"null", b"3", b"[]", b"{}", b'"text"', b"\xff\xfe", b'{"text": 3}', b'{"text": ""}', b'{"text": null}', b'{"sequence": 3}',
    b'{"sequence": []}', b'{"sequence": [null]}', b'{"sequence": [true]}', b'{"sequence": [{}]}', b'{"sequence": ["a", 1]}',
    b'{"sequence": [1e400]}', b'{"sequence": [NaN]}', b'{"sequence": [0.5]}', b'{"sequence": [[1, [2]]]}', b'{"sequence": [[[]]]}',
    b'{"text": "a", "sequence": ["a"]}', b'{"text": "a", "k": -1}', b'{"text": "a", "k": true}', b'{"text": "a", "k": "last"}',
    b'{"text": "a", "k": 1.5}', b'{"text": "a", "k": 99999999999999999999}', b'{"text": "a", "k": null}', b'{"text": "a", "x": 1}',
    b"[" * 2000, b"[" * 2000 + b"]" * 2000, b'{"sequence": ' + b"[" * 900 + b"]" * 900 + b"}", b'{"sequence": [' + b"9" * 40 + b"]}",
    b'{"text": "' + b"word " * 13 + b'"}', b'{"text": "half', b"POST / HTTP/1.1\r\n\r\n",
]  # fmt: skip


@pytest.mark.parametrize("body", NONSENSE, ids=lambda body: repr(body[:24]))
def test_nonsense_is_refused_with_a_reason(client: TestClient, body: bytes) -> None:
    answer = client.post("/score", content=body)
    assert answer.status_code in (400, 422), answer.text
    assert 10 < len(answer.json()["error"]) < 500


def test_sizes_have_limits(client: TestClient) -> None:
    assert client.post("/score", content=b"x" * 4097).status_code == 413
    assert client.post("/score", content=iter([b"x" * 3000] * 3)).status_code == 413  # no length said
    assert client.post("/score", content=b"{}", headers={"content-length": "-5"}).status_code == 413
    assert "1 to 12" in client.post("/score", json={"sequence": [1] * 13}).json()["error"]
    assert client.post("/score", json={"sequence": [1] * 12}).status_code == 200


def test_every_error_has_one_form(monitor: Monitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """404, 405, 413, 422, 400, 401, 429 and 500 alike; 408, 431 and 503 of connections: test_service_process.py."""
    with TestClient(
        app(monitor, Limits(body=4096, length=12, burst=9, rate=1e-6), token="a-token"),
        raise_server_exceptions=False,
    ) as client:
        own = {"authorization": "Bearer a-token"}
        asked = [
            (404, client.get("/nothing", headers=own)), (405, client.get("/score", headers=own)),
            (405, client.delete("/live")), (413, client.post("/score", content=b"x" * 5000, headers=own)),
            (422, client.post("/score", content=b"{}", headers=own)), (400, client.post("/score", content=b"{", headers=own)),
            (401, client.get("/health")),
        ]  # fmt: skip
        with monkeypatch.context() as broken:
            broken.setattr(Monitor, "score_all", lambda *_, **__: 1 / 0)
            asked.append((500, client.post("/score", json={"text": TEXT}, headers=own)))
        asked += [(429, client.get("/health", headers=own)) for _ in range(4)][2:]
    for status, answer in asked:
        assert answer.status_code == status, (status, answer.status_code, answer.text)
        assert answer.headers["content-type"] == "application/json"
        assert list(answer.json()) == ["error"], answer.text
        assert len(answer.json()["error"]) > 5


def test_wrong_tokens_count_for_the_rate(monitor: Monitor) -> None:
    with TestClient(app(monitor, Limits(burst=5, rate=1e-6), token="a-token")) as client:
        said = [
            client.get("/health", headers={"authorization": f"Bearer guess {n}"}).status_code
            for n in range(8)
        ]
        assert said == [401] * 5 + [429] * 3
        assert client.get("/live").status_code == 200  # a probe is never refused


HOSTILE = (
    b'\\"' * 2**15, b'"' + b'\\"' * 2**15, b'"' * 2**16, b'"a' * 2**15, b'"\\' * 2**15, b"\\" * 2**16, b'["' + b"\\\\" * 2**15,
    b"[" * 2**16,
)  # fmt: skip


@pytest.mark.parametrize("body", HOSTILE, ids=lambda body: repr(body[:8]))
def test_the_depth_of_a_body_is_found_in_one_pass(body: bytes) -> None:
    """A match of a string that has begun never fails, wherever it begins: so no byte is read twice, and time grows with the length. The
    seconds are a second look, of 7.6 where it was quadratic."""
    begins = [place for place in range(len(body)) if body[place] == ord('"')]
    for place in [*begins[:50], *begins[-50:]]:
        assert STRING.match(body, place) is not None
    for size in (len(body) // 8, len(body)):
        found = [match.span() for match in STRING.finditer(body[:size])]
        assert all(
            one[1] <= other[0] for one, other in itertools.pairwise(found)
        )  # together no longer than the body
    before = time.process_time()
    assert _depth(body) == (len(body) if body[:2] == b"[[" else 1 if body[:1] == b"[" else 0)
    assert time.process_time() - before < 2.0


def test_the_depth_is_that_of_a_reader_that_goes_sign_by_sign() -> None:
    draw = random.Random(0)
    for _ in range(5000):
        body = bytes(draw.choices(b'"\\[]{}a\n\x80', k=draw.randrange(14)))
        deep = most = at = 0
        inside = False
        while at < len(body):
            sign = body[at : at + 1]
            if inside:
                at += sign == b"\\"
                inside = sign != b'"'
            elif sign == b'"':
                inside = True
            else:
                deep += (sign in b"[{") - (sign in b"]}")
                most = max(most, deep)
            at += 1
        assert _depth(body) == most, body


def test_long_messages_are_read_beside_the_event_loop(
    monitor: Monitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, str]] = []

    def noting(body: bytes, *limits: int) -> Any:
        seen.append((len(body), threading.current_thread().name))
        return read_question(body, *limits)

    monkeypatch.setattr(serve, "read_question", noting)
    with TestClient(app(monitor)) as client:
        assert client.post("/score", json={"text": TEXT}).status_code == 200
        assert (
            client.post("/score", content=b'{"sequence": [' + b" " * INLINE_BYTES + b'"please"]}').status_code
            == 200
        )
    (_, short), (_, long) = seen
    assert not short.startswith("reading")
    assert long.startswith("reading")


def test_a_text_far_too_long_is_not_cut_into_words(client: TestClient) -> None:
    answer = client.post("/score", json={"text": "." * 1000})
    assert answer.status_code == 422
    assert "has 1000 characters; at most 768 are allowed" in answer.json()["error"]


def test_connections_are_counted_by_address_and_some_are_kept_for_probes() -> None:
    made = Connections(most=40, each=10)
    assert [made.admit(("a", n), "1.2.3.4") for n in range(10)] == [True] * 10
    assert [made.admit(("a", n), "1.2.3.4") for n in range(10, 20)] == [False] * RESERVED_EACH + [None] * (
        10 - RESERVED_EACH
    )
    assert [made.admit(("b", n), f"10.0.0.{n}") for n in range(30)] == [True] * 30  # nobody else is shut out
    assert [made.admit(("c", n), f"10.0.1.{n}") for n in range(RESERVED)] == [False] * (
        RESERVED - RESERVED_EACH
    ) + [None] * RESERVED_EACH
    for n in range(10):
        made.release(("a", n))
    assert made.admit("d", "1.2.3.4") is True
    assert [made.admit(("e", n), f"2001:db8::{n}") for n in range(9)] == [True] * 9
    assert Connections(most=5, each=0).admit("a", "::1") is True


def test_unknown_words_follow_the_monitors_policy(monitor: Monitor) -> None:
    strict = Monitor.fit(monitor.net, [], monitor.mutation, unknown="error")
    with TestClient(app(strict)) as client:
        answer = client.post("/score", json={"text": "please zyzzyva"})
        assert answer.status_code == 422
        assert "zyzzyva" in answer.json()["error"]
        assert client.post("/score", content=b'{"text": "half a sign: \\ud800"}').status_code == 422


def test_a_full_service_says_so_and_begins_nothing(monitor: Monitor) -> None:
    with TestClient(app(monitor, Limits(waiting=0))) as client:
        assert client.post("/score", json={"text": TEXT}).status_code == 503
        with client.websocket_connect("/stream") as stream:
            stream.send_text('"hello"')
            assert "try again later" in stream.receive_json()["error"]
        assert client.get("/health").json()["waiting"] == 0


def test_other_paths_and_methods(client: TestClient) -> None:
    wrong, missing = client.get("/score"), client.get("/nothing")
    assert (wrong.status_code, wrong.json()) == (405, {"error": "method not allowed."})
    assert (missing.status_code, missing.json()) == (404, {"error": "not found."})
    health = client.get("/health").json()
    assert health["status"] == "ok"
    assert health["model"] == "help desk LSTM"


def test_a_failing_model_is_a_500_and_the_service_goes_on(
    monitor: Monitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TestClient(app(monitor), raise_server_exceptions=False) as client:
        with monkeypatch.context() as broken:
            broken.setattr(Monitor, "score_all", lambda *_, **__: 1 / 0)
            assert client.post("/score", json={"text": TEXT}).status_code == 500
        assert client.post("/score", json={"text": TEXT}).status_code == 200


def test_an_error_is_logged_without_its_message(monitor: Monitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may quote what was asked."""

    def fails(self: Monitor, sequences: Any, k: Any = 0) -> Any:
        raise ValueError(f"no idea what {sequences} means: zyzzyva")

    said = io.StringIO()
    handler = logging.StreamHandler(said)
    handler.setFormatter(MessageFreeFormatter("%(message)s"))
    log.addHandler(handler)
    monkeypatch.setattr(Monitor, "score_all", fails)
    try:
        with TestClient(app(monitor)) as client:
            assert "zyzzyva" not in client.post("/score", json={"text": TEXT}).text
        log.error("and as the server's own log would have it", exc_info=ValueError("zyzzyva"))
    finally:
        log.removeHandler(handler)
    assert re.search(r"ValueError < \S+:\d+ in fails", said.getvalue())
    assert "would have it\nValueError" in said.getvalue()
    assert "zyzzyva" not in said.getvalue()


def number(text: str, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    assert found is not None, name
    return float(found.group(1))


def test_metrics_count_what_happened(monitor: Monitor) -> None:
    with TestClient(app(monitor, Limits(length=12))) as client:
        for _ in range(3):
            client.post("/score", json={"text": TEXT})
        client.post("/score", content=b"{")
        client.get("/somewhere")
        answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    text = answer.text
    assert number(text, 'holdfast_requests_total{path="/score",status="200"}') == 3
    assert number(text, 'holdfast_requests_total{path="/score",status="400"}') == 1
    assert number(text, 'holdfast_requests_total{path="other",status="404"}') == 1
    assert number(text, "holdfast_errors_total") == 2
    assert number(text, "holdfast_elements_scored_total") == 12
    assert number(text, "holdfast_score_seconds_count") == 4
    assert number(text, 'holdfast_score_seconds_bucket{le="+Inf"}') == 4
    for name in ("holdfast_score_seconds", "holdfast_score"):
        counts = [
            float(count) for count in re.findall(rf"^{name}_bucket{{[^}}]*}} (\S+)", text, re.MULTILINE)
        ]
        assert counts == sorted(counts)
        assert counts[-1] == number(text, f"{name}_count")
    scores = [score.value for score in monitor.score(TEXT)] * 3
    assert number(text, "holdfast_score_count") == len(scores)
    assert number(text, "holdfast_score_sum") == pytest.approx(sum(scores))
    assert number(text, 'holdfast_score_bucket{le="0.9"}') == sum(score <= 0.9 for score in scores)
    assert number(text, "holdfast_score_seconds_sum") > 0
    shape = re.compile(
        r'(# (HELP|TYPE) holdfast_\w+ .+|holdfast_\w+(\{\w+="[^"]*"(,\w+="[^"]*")*\})? [0-9.e+-]+)'
    )
    assert all(shape.fullmatch(line) for line in text.splitlines()), text


def test_a_stream_gives_one_score_for_each_element(client: TestClient, monitor: Monitor) -> None:
    own = monitor.stream()
    with client.websocket_connect("/stream") as stream:
        for word in TEXT.split():
            stream.send_text(json.dumps(word))
            found, truth = stream.receive_json(), own.step(word)
            assert truth is not None
            assert (found["value"], found["label"]) == (truth.value, truth.label)
            assert found["evidence"]["kind"] == "proved"


def test_nonsense_in_a_stream_leaves_it_where_it_was(client: TestClient, monitor: Monitor) -> None:
    own = monitor.stream()
    with client.websocket_connect("/stream") as stream:
        for word in TEXT.split():
            for bad in ("{", "null", '{"text": "a"}', "[1, 2]", "[", "true"):
                stream.send_text(bad)
                assert "error" in stream.receive_json()
            stream.send_bytes(b"\xff")
            assert "error" in stream.receive_json()
            stream.send_text(json.dumps(word))
            truth = own.step(word)
            assert truth is not None
            assert stream.receive_json()["value"] == truth.value
        stream.send_text('{"reset": true}')
        assert stream.receive_json() == {"reset": True}
        stream.send_text('"hello"')
        first = monitor.stream().step("hello")
        assert first is not None
        assert stream.receive_json()["label"] == first.label


def test_streams_do_not_share_their_state_and_have_a_limit(client: TestClient) -> None:
    with client.websocket_connect("/stream") as one, client.websocket_connect("/stream") as two:
        alone = []
        for word in TEXT.split():
            one.send_text(json.dumps(word))
            alone.append(one.receive_json())
        for word, before in zip(TEXT.split(), alone, strict=True):
            two.send_text(json.dumps(word))
            assert two.receive_json() == before
        with pytest.raises(WebSocketDenialResponse) as refused, client.websocket_connect("/stream") as three:
            three.receive_json()
        assert refused.value.status_code == 503
        assert "too many streams" in refused.value.json()["error"]
    with client.websocket_connect("/stream") as again:
        again.send_text('"hello"')
        assert "value" in again.receive_json()


def test_the_extra_is_named_where_it_is_missing(monitor: Monitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastapi", None)
    with pytest.raises(MissingExtra, match=r"pip install 'holdfast\[serve\]'"):
        app(monitor)


def test_questions_that_wait_together_get_their_own_answers(monitor: Monitor) -> None:
    """Many at once, of several k, one of which the model refuses: each gets what it would get alone."""
    texts = helpdesk.sentences("test").text[:20]

    async def all_at_once() -> list[Any]:
        with ThreadPoolExecutor(1) as worker:
            batches = RequestBatcher(monitor, worker)
            asked = [batches.scores(text.split(), k) for text in texts for k in (0, "final", 1)]
            return await asyncio.gather(*asked, batches.scores([], 0), return_exceptions=True)

    *found, refused = asyncio.run(all_at_once())
    assert isinstance(refused, BadInput)
    alone = [monitor.score(text.split(), k) for text in texts for k in (0, "final", 1)]
    for mine, truth in zip(found, alone, strict=True):
        assert mine.k == truth.k
        assert torch.equal(mine.values.nan_to_num(-1), truth.values.nan_to_num(-1))


def test_a_question_that_fails_does_not_spoil_those_beside_it(
    monitor: Monitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = Monitor.score_all

    def sometimes(self: Monitor, sequences: list[torch.Tensor], k: Any = 0) -> Any:
        if any(len(sequence) == 2 for sequence in sequences):
            raise RuntimeError("not this one")
        return sound(self, sequences, k)

    async def three() -> list[Any]:
        with ThreadPoolExecutor(1) as worker:
            batches = RequestBatcher(monitor, worker)
            return await asyncio.gather(
                *(batches.scores(["hello"] * n, 0) for n in (1, 2, 3)), return_exceptions=True
            )

    monkeypatch.setattr(Monitor, "score_all", sometimes)
    one, two, many = asyncio.run(three())
    assert (len(one), len(many)) == (1, 3)
    assert isinstance(two, RuntimeError)
