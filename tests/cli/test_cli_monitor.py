"""`holdfast monitor`: fit, score, evaluate, serve, export; what they show, what they write, and what they refuse."""

import json
import re
import signal
import socket
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_workshop import Ask

from holdfast.datasets import helpdesk
from holdfast.monitor import Groups, Monitor
from holdfast.store import Store

TEXT = "where is my package"
READER = (
    "monitor",
    "fit",
    "reader.onnx",
    "--vocabulary",
    "words.txt",
    "--mutation",
    "substitutes.json",
    "-o",
    "mine",
)


def embedded() -> Monitor:
    net = helpdesk.network()
    return Monitor.fit(net, [], Groups.of_sets(helpdesk.sets(), vocabulary=net.vocabulary), unknown="unk")


def shown(word: str, text: str) -> float:
    found = re.search(rf"\b{word} ([0-9.]+)", text)
    assert found is not None, text
    return float(found.group(1))


def test_without_arguments_the_embedded_help_desk_is_scored(ask: Ask) -> None:
    said = ask("monitor", "score")
    assert said.code == 0
    assert "help desk LSTM that ships with holdfast" in said.out
    assert sum("-> " in line for line in said.out.splitlines()) == 8
    for intent in helpdesk.INTENTS:
        assert f"-> {intent}" in said.out
    assert "proved by enumeration" in said.out


def test_scores_run_from_red_to_green() -> None:
    from holdfast.cli.monitor.scores import colour

    shades = [colour(score).color for score in (0.0, 0.5, 1.0)]
    (low, _, high) = (shade.triplet for shade in shades if shade is not None)
    assert low is not None
    assert high is not None
    assert low.red > 2 * low.green
    assert high.green > 2 * high.red
    assert colour(float("nan")).color is None


@pytest.mark.parametrize("k", ["0", "1", "final"])
def test_a_sentence_is_shown_with_the_monitors_scores(ask: Ask, k: str) -> None:
    said = ask("monitor", "score", "helpdesk", f"{TEXT.capitalize()}!", "--k", k)
    truth = embedded().score(TEXT.split(), k if k == "final" else int(k))
    assert shown("my", said.out) == pytest.approx(float(truth.values[2]), abs=0.006)
    assert "-> delivery" in said.out


def test_a_monitor_is_kept_and_opened_again(ask: Ask, workshop: Path) -> None:
    assert ask("monitor", "fit", "-o", "mine").code == 0
    assert {path.name for path in (workshop / "mine").iterdir()} == {
        "monitor.json",
        "monitor.safetensors",
        "model.json",
    }
    (workshop / "asked.txt").write_text(f"{TEXT}\n\nplease zyzzyva my order\n")
    said = ask("monitor", "score", "mine", "asked.txt")
    assert said.code == 0
    assert shown("package", said.out) == pytest.approx(
        float(embedded().score(TEXT.split()).values[3]), abs=0.006
    )
    assert "zyzzyva" in said.out


def test_your_own_words_and_sets(ask: Ask, workshop: Path) -> None:
    said = ask(*READER, "--data", "text.tsv")
    assert said.code == 0
    assert "mode exact; 2 of 9 tokens have substitutes" in said.out
    assert "good" in ask("monitor", "score", "mine", "the film was good").out
    assert "'terrible' is not in the vocabulary" in ask("monitor", "score", "mine", "the terrible film").err
    assert "no word here has a substitute" in ask("monitor", "score", "mine", "the film").out
    (workshop / "table.csv").write_text("said,felt,heard\nthe film was good,1,the film\n")
    assert "--text-column" in ask("monitor", "score", "mine", "table.csv").err
    scored = ask("monitor", "score", "mine", "table.csv", "--text-column", "said", "--label-column", "felt")
    assert scored.code == 0, scored.err
    assert "good" in scored.out


@pytest.mark.parametrize("mutation", ["typos", "vectors", "vectors:0.3"])
def test_other_mutations_of_words(ask: Ask, mutation: str) -> None:
    assert ask("monitor", "fit", "--mutation", mutation, "-o", "mine").code == 0
    assert "-> delivery" in ask("monitor", "score", "mine", TEXT).out


def test_frames_are_sampled_and_shown_as_a_table(ask: Ask) -> None:
    said = ask("monitor", "fit", "lstm.onnx", "--mutation", "noise:0.1,inf", "--samples", "30", "-o", "mine")
    assert said.code == 0, said
    assert "Noise" in said.out
    assert "mode sampled" in said.out
    said = ask("monitor", "score", "mine", "data.npz", "--limit", "1")
    assert "least robust: frame" in said.out
    assert "sampled: the interval holds with confidence 0.95" in said.out
    assert "unchanged answers" in ask("monitor", "evaluate", "mine", "--data", "data.npz", "-o", "run").out


def test_evaluation_shows_errors_attacks_and_reliability(ask: Ask) -> None:
    said = ask("monitor", "evaluate", "--limit", "40", "-o", "run")
    for part in (
        "mean squared",
        "least robust",
        "chance",
        "final scores",
        "unchanged answers",
        "0 by definition",
    ):
        assert part in " ".join(said.out.split()), part


def test_scores_are_records_and_an_evaluation_goes_on_where_its_time_was_up(ask: Ask) -> None:
    assert ask("monitor", "evaluate", "--limit", "6", "-o", "whole").code == 0
    said = ask("monitor", "evaluate", "--limit", "6", "-o", "run", "--seconds", "0")
    assert said.code == 0, said.err
    assert "none of 6 yet" in said.out
    assert ask("resume", "run", "--seconds", 600).code == 0
    made, texts = embedded(), helpdesk.sentences("test").text
    with Store.open("run") as store, Store.open("whole") as whole:
        records = store.records()
        assert [(r.key, r.bracket) for r in records] == [(r.key, r.bracket) for r in whole.records()]
        assert {(r.goal, r.status) for r in records} == {("probability", "closed")}
        for place in range(6):
            for part, k in (("now", 0), ("final", "final")):
                mine = [r.bracket.lower.value for r in records if r.key.index == place and r.key.part == part]
                assert mine == pytest.approx(made.score(texts[place].split(), k).values.tolist())  # type: ignore[arg-type]
    assert ask("report", "run").code == 0


def test_drawn_scores_are_estimates_beside_the_definition(ask: Ask) -> None:
    assert (
        ask(
            "monitor", "fit", "lstm.onnx", "--mutation", "noise:0.1,inf", "--samples", "30", "-o", "mine"
        ).code
        == 0
    )
    assert ask("monitor", "evaluate", "mine", "--data", "data.npz", "--limit", "2", "-o", "run").code == 0
    with Store.open("run") as store:
        for record in store.records():
            assert (record.bracket.lower.value, record.bracket.upper.value, record.status) == (
                0,
                1,
                "finished",
            )
            (estimate,) = record.bracket.estimates
            assert (estimate.evidence.kind, estimate.evidence.confidence) == ("sampled", 0.95)


def test_an_abstract_model_is_evaluated_against_enumeration(ask: Ask) -> None:
    assert (
        "mode abstract"
        in ask("monitor", "fit", "--mutation", "typos", "--mode", "abstract", "-o", "mine").out
    )
    said = ask("monitor", "evaluate", "mine", "--limit", "40", "-o", "run")
    error = re.search(r"mean squared\s+\S\s+([0-9.]+)", said.out)
    constant = re.search(r"constant mean score\s+\S\s+([0-9.]+)", said.out)
    assert error is not None
    assert constant is not None
    assert 0 < float(error.group(1)) < float(constant.group(1))
    assert "estimated by an abstract model" in ask("monitor", "score", "mine", TEXT).out


def test_marble_is_fitted_scored_and_evaluated(ask: Ask, workshop: Path) -> None:
    said = ask(
        "monitor", "fit", "--mutation", "typos", "--mode", "marble", "--omega", "4", "--theta", "0.3",
        "--limit", "120", "-o", "mine",
    )  # fmt: skip
    assert said.code == 0, said.err
    assert "mode marble" in said.out
    kept = json.loads((workshop / "mine" / "monitor.json").read_text())["marble"]
    assert (kept["refinement"]["omega"], kept["refinement"]["theta"]) == (4, 0.3)
    said = ask("monitor", "score", "mine", TEXT)
    assert "estimated by an abstract model: no guarantee" in said.out
    again = Monitor.load(workshop / "mine", helpdesk.network()).score(TEXT.split())
    assert shown("my", said.out) == pytest.approx(float(again.values[2]), abs=0.006)
    assert ask("monitor", "evaluate", "mine", "--limit", "5", "-o", "run").code == 0
    said = ask("monitor", "score", "mine", TEXT, "--k", "final")
    assert said.code == 2
    assert "k=0" in said.err


def test_the_abstract_model_goes_to_prism(ask: Ask, workshop: Path) -> None:
    said = ask("monitor", "export", "--prism", "model", "--limit", "60")
    assert said.code == 0, said
    states = int(re.findall(r"(\d+) states", said.out)[0])
    assert len((workshop / "model" / "marble.sta").read_text().splitlines()) == states + 1
    assert (workshop / "model" / "marble.tra").read_text().split()[0] == str(states)
    assert (workshop / "model" / "marble.delivery.trew").is_file()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("fit", "reader.onnx", "-o", "run"), "--mutation"),
        (("fit", "--mutation", "magic", "-o", "run"), "magic"),
        (("fit", "--mutation", "none.json", "-o", "run"), "no such file"),
        (("fit", "--mutation", "noise:x", "-o", "run"), "expected a number"),
        (("fit", "--mutation", "noise:-1", "-o", "run"), "radius"),
        (("fit", "--mode", "quick", "-o", "run"), "abstract"),
        (("fit", "--mode", "exact", "--omega", "4", "-o", "run"), "mode marble"),
        (("fit", "--mode", "marble", "--theta", "nan", "-o", "run"), "theta"),
        ((*READER[1:-2], "--mode", "marble", "-o", "run"), "--data"),
        (("fit", "--unknown", "guess", "-o", "run"), "skip"),
        (("fit", "--answer", "bins", "-o", "run"), "bins:0.5"),
        (("fit", "none.onnx", "--mutation", "typos", "-o", "run"), "none.onnx"),
        (("fit", "lstm.onnx", "--mutation", "typos", "-o", "run"), "noise:0.1"),
        (("fit", "reader.onnx", "--mutation", "typos", "-o", "run"), "--vocabulary"),
        (("score", "nowhere", "text"), "nowhere"),
        (("score", "helpdesk", TEXT, "--k", "last"), "final"),
        (("score", "helpdesk", "none.txt"), "no such file"),
        (("evaluate", "nowhere", "-o", "run"), "holdfast monitor fit"),
        (("export", "--prism", "run", "--theta", "0"), "theta"),
    ],
)
def test_what_makes_no_sense_is_refused(
    ask: Ask, workshop: Path, arguments: tuple[str, ...], reason: str
) -> None:
    said = ask("monitor", *arguments)
    assert said.code == 2, said
    assert reason in said.err
    assert said.err.count("\n") == 1
    assert not (workshop / "run").exists()


def test_a_monitor_is_never_overwritten_and_damage_is_named(ask: Ask, workshop: Path) -> None:
    ask("monitor", "fit", "-o", "mine")
    assert "already holds monitor.json" in ask("monitor", "fit", "-o", "mine").err
    kept = json.loads((workshop / "mine" / "model.json").read_text())
    question = {"model": "reader.onnx", "vocabulary": "words.txt", "constants": []}
    (workshop / "mine" / "model.json").write_text(json.dumps({**kept, "model": question}))
    assert "another model" in ask("monitor", "score", "mine", TEXT).err
    (workshop / "mine" / "model.json").write_text('{"model": 3}')
    said = ask("monitor", "score", "mine", TEXT)
    assert said.code == 2
    assert "model.json: damaged" in said.err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card here")
def test_a_device_that_is_not_there_is_said(ask: Ask, workshop: Path) -> None:
    assert ask("monitor", "fit", "--out", "mine", "--limit", 3).code == 0
    for folder in ("helpdesk", "mine"):
        said = ask("monitor", "score", folder, TEXT, "--device", "cuda")
        assert said.code == 2
        assert "no GPU is visible" in said.err
    assert ask("monitor", "evaluate", "mine", "--limit", 2, "--device", "cuda", "--out", "run").code == 2
    assert ask("monitor", "score", "mine", TEXT, "--device", "cpu").code == 0


def test_serving_without_the_extra_names_it(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    said = ask("monitor", "serve")
    assert said.code == 2
    assert "pip install 'holdfast[serve]'" in said.err


def test_an_address_that_is_taken_is_said_at_once(ask: Ask) -> None:
    for package in ("fastapi", "uvicorn", "websockets"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install 'holdfast[serve]'")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        said = ask("monitor", "serve", "--port", other.getsockname()[1])
    assert said.code == 2
    assert "cannot listen on 127.0.0.1" in said.err


def test_a_service_for_others_warns_unless_it_has_a_token(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("fastapi", "uvicorn", "websockets"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install 'holdfast[serve]'")
    with socket.socket() as other:  # so that nothing is opened to anybody
        other.bind(("0.0.0.0", 0))
        other.listen()
        port = other.getsockname()[1]
        assert "set a token" in ask("monitor", "serve", "--host", "0.0.0.0", "--port", port).out
        assert "set a token" not in ask("monitor", "serve", "--host", "127.0.0.1", "--port", port).out
        monkeypatch.setenv("HOLDFAST_TOKEN", "of-sixteen-signs-or-more")
        assert "set a token" not in ask("monitor", "serve", "--host", "0.0.0.0", "--port", port).out


def test_tokens_and_certificates_are_checked_before_the_service_begins(ask: Ask, workshop: Path) -> None:
    for package in ("fastapi", "uvicorn", "websockets"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install 'holdfast[serve]'")
    for wrong in ("short", "two words of enough signs", "", "nur-ascii-bitte-schön-ja"):
        (workshop / "token").write_text(wrong, encoding="utf-8")
        said = ask("monitor", "serve", "--token-file", workshop / "token")
        assert said.code == 2
        assert "at least 16 ASCII characters" in said.err
        assert not wrong or wrong not in said.err + said.out
    assert ask("monitor", "serve", "--token-file", workshop / "nothing").code == 2
    assert (
        "both --certificate and --certificate-key"
        in ask("monitor", "serve", "--certificate-key", workshop / "token").err
    )
    said = ask(
        "monitor", "serve", "--certificate-key", workshop / "token", "--certificate", workshop / "token"
    )
    assert said.code == 2
    assert "PEM" in said.err


def test_the_service_answers_until_it_is_interrupted(process: Callable[..., Any]) -> None:
    for package in ("fastapi", "uvicorn", "websockets"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install 'holdfast[serve]'")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    running = process("monitor", "serve", "--port", port)
    try:
        for _ in range(6000):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                    assert json.loads(answer.read())["status"] == "ok"
                break
            except OSError:
                assert running.poll() is None
                time.sleep(0.1)
        body = json.dumps({"text": TEXT, "k": "final"}).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/score", body, timeout=600) as answer:
            assert len(json.loads(answer.read())["scores"]) == 4
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=600)
    finally:
        running.kill()
    assert f"http://127.0.0.1:{port}" in out
    assert "Traceback" not in err
