"""The same text is the same tokens by every door: a file, a function, the command line, the service and Python."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_workshop import Ask
from rich.console import Console
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

import holdfast as hf
from holdfast.api.radius import radius_problems
from holdfast.cli.monitor.scores import show_scores
from holdfast.commands.monitor_evaluate import Evaluate
from holdfast.commands.options import ModelOptions
from holdfast.commands.radius import Radius
from holdfast.commands.reading.model import load_network
from holdfast.commands.reading.monitors import of_texts
from holdfast.errors import BadInput
from holdfast.monitor.saving import digest
from holdfast.reading.data import load_data
from holdfast.store import Store

WORDS = ("<unk>", "the", "film", "was", "good", "Paris", "isn't", ",", "café", "it's", "##s")
TEXTS = (
    "the film was good",
    "The FILM, was GOOD!",
    "  the  film   ",
    "isn't it's 'the' film's",
    "“Paris” (café) … cafe\u0301",
    "a zebra — the\u00a0film\u2028was 漢字 🎬",
    "was\tgood\x0bthe\x1cfilm",
    "films,good ,,the",
)
CODE = '''
import torch
from torch import nn

class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.lstm, self.head = nn.Embedding(11, 4), nn.LSTM(4, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, tokens):
        return self.head(self.lstm(self.table(tokens))[0][:, -1])

def model():
    return Reader().eval()

def letters(text):
    return [ord(sign) % 11 for sign in text]

def words(text):
    return text.casefold().replace("'", " '").split(" ")

def texts():
    from pathlib import Path
    found = Path("own.tsv").read_text().removesuffix("\\n").split("\\n")
    return {"x": [line.split("\\t", 1)[1] for line in found], "y": [0] * len(found)}
'''  # fmt: skip
QUICK = ("--norm", 2, "--methods", "pgd", "--queries", 1, "--limit", 1, "--executor", "here")
HOW = {
    "usual": ("--vocabulary", "own.txt"),
    "words": ("--vocabulary", "own.txt", "--tokenizer", "own_reader:words"),
    "letters": ("--tokenizer", "own_reader:letters"),
    "file": ("--tokenizer", "own.json"),
}


@pytest.fixture
def texts(workshop: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model of the user's own, texts and three tokenizers."""
    monkeypatch.delitem(sys.modules, "own_reader", raising=False)
    (workshop / "own_reader.py").write_text(CODE)
    (workshop / "own.txt").write_text("\n".join(WORDS) + "\n")
    made = Tokenizer(models.WordPiece({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    made.normalizer, made.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(single="$A Paris", special_tokens=[("Paris", 5)])
    made.save(str(workshop / "own.json"))
    (workshop / "own.tsv").write_text("".join(f"0\t{text}\n" for text in TEXTS))
    (workshop / "own_lines.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    return workshop


def options(how: str) -> ModelOptions:
    given = HOW[how]
    said = dict(zip((name.removeprefix("--") for name in given[::2]), given[1::2], strict=True))
    return ModelOptions("own_reader:model", **said)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.filterwarnings("ignore:.*words")
def test_every_door_gives_the_same_tokens(
    how: str, texts: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = load_network(options(how))
    truth = [net.tokens(text).tolist() for text in TEXTS]
    assert len({tuple(row) for row in truth}) > len(TEXTS) // 2
    found: dict[str, list[list[int]]] = {}

    problems = radius_problems(net, list(TEXTS), [0] * len(TEXTS), norm=2)
    given = {
        key.index: problem.region.centre[row] for problem in problems for row, key in enumerate(problem.keys)
    }
    assert net.vectors is not None
    found["hf.radius"] = [
        (given[i][:, None] == net.vectors).all(-1).int().argmax(-1).tolist() for i in range(len(TEXTS))
    ]
    for source in ("own.tsv", "own_reader:texts"):
        data = Radius(options(how), source).build().data
        assert data is not None
        found[f"radius {source}"] = [row.tolist() for row in data.rows]

    fitted = ask(
        "monitor",
        "fit",
        "own_reader:model",
        *HOW[how],
        "--mutation",
        "vectors:0.9",
        "-d",
        "own_lines.txt",
        "-o",
        "mine",
    )
    assert fitted.code == 0, fitted.err
    for source in ("own.tsv", "own_lines.txt", "own_reader:texts"):
        found[f"evaluate {source}"] = [
            row.tolist() for row in Evaluate("mine", source, trust=True).build().extra[2]
        ]
    monitor = hf.Monitor.load("mine", net)
    found["hf.Monitor"] = [monitor.read(text).tolist() for text in TEXTS]
    found["service"] = served(monitor)
    asked = spied(hf.Monitor, monkeypatch)
    for text in TEXTS:
        show_scores("mine", text, "0", None, None, Console(quiet=True), trust=True)
    found["score"] = asked
    for door, tokens in found.items():
        assert tokens == truth, door


def spied(on: Any, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Writes down what is scored."""
    asked, scoring = list[list[int]](), on.score_all

    def looked(*arguments: Any) -> Any:
        asked.extend(sequence.tolist() for part in arguments if isinstance(part, list) for sequence in part)
        return scoring(*arguments)

    monkeypatch.setattr(on, "score_all", looked)
    return asked


def served(monitor: hf.Monitor) -> list[list[int]]:
    testing = pytest.importorskip(
        "fastapi.testclient", reason="fastapi is not installed: pip install 'holdfast[serve]' httpx"
    )
    from holdfast.monitor.service.serve import app

    with testing.TestClient(app(monitor)) as client, pytest.MonkeyPatch.context() as monkeypatch:
        asked = spied(monitor, monkeypatch)
        for text in TEXTS:
            answer, read = client.post("/score", json={"text": text}), monitor.reader.texts([text])
            assert answer.status_code == 200
            assert (answer.json()["unknown"], answer.json()["left_out"]) == (read.unknown, read.left_out)
        for text in ("", " \u00a0"):
            assert client.post("/score", json={"text": text}).status_code == 422
    return asked


@pytest.mark.parametrize("text", ["", "  ", "\u2028"])
def test_every_door_refuses_an_empty_text(text: str, texts: Path) -> None:
    net = load_network(options("file"))  # to whose tokenizer it would be a text, of one special token
    monitor = hf.Monitor.fit(net, [], hf.monitor.Groups.of_vectors(net.vectors))
    Path("own.tsv").write_text(f"0\tgood\n0\t{text}\n")
    for door in (
        lambda: net.tokens(text),
        lambda: hf.radius(net, ["good", text], [0, 0]),
        lambda: load_data("own.tsv", net),
        lambda: load_data("own_reader:texts", net),
        lambda: monitor.score(text),
        lambda: of_texts([text], monitor.reader),
    ):
        with pytest.raises(BadInput, match=r"empty|a class, a tab and a text"):
            door()


def test_what_became_unknown_is_told_and_kept(texts: Path, ask: Ask) -> None:
    begin = ("radius", "-m", "own_reader:model", *HOW["usual"], "-d", "own.tsv", *QUICK)
    said = ask(*begin, "-o", "run")
    assert said.code == 0, said.err
    assert "own.tsv: 8 of 34 words are unknown to the network" in " ".join(said.out.split())
    with Store.read("run") as store:
        unknown, left_out = store.question.model.notes
    assert unknown.endswith(""": "film's", 'cafe\u0301', 'a', 'zebra', '—' ...""")
    assert left_out.startswith("own.tsv: 8 signs or words have no token and are left out: '!'")
    assert ask("report", "run").code == 0
    assert "words are unknown to the network" in Path("run/report.html").read_text()
    scored = ask(
        "monitor", "fit", "own_reader:model", *HOW["usual"], "--mutation", "vectors:0.9", "-o", "mine"
    )
    assert scored.code == 0
    assert "1 of 2 words are unknown to the network" in " ".join(
        ask("monitor", "score", "mine", "--trust", "zebra film").out.split()
    )


# ---- known again


@pytest.mark.parametrize("how", ["words", "file"])
def test_a_run_and_a_monitor_know_their_tokenizer_again(
    how: str, texts: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = ("radius", "-m", "own_reader:model", *HOW[how], "-d", "own.tsv", *QUICK)
    assert ask(*begin, "-o", "run").code == 0
    assert (
        ask("monitor", "fit", "own_reader:model", *HOW[how], "--mutation", "vectors:0.9", "-o", "mine").code
        == 0
    )
    assert ask("resume", "run", "--trust").code == 0
    assert ask("monitor", "score", "mine", "--trust", "good film").code == 0
    if how == "file":
        changed = Tokenizer.from_file("own.json")
        changed.normalizer = normalizers.Strip()
        changed.save("own.json")
    else:
        Path("own_reader.py").write_text(CODE.replace("casefold", "upper"))
        monkeypatch.delitem(sys.modules, "own_reader")
    said = ask("resume", "run", "--trust")
    assert said.code == 2
    assert "the tokenizer is not what this run was begun with" in said.err
    said = ask("monitor", "score", "mine", "--trust", "good film")
    assert said.code == 2
    assert "with another tokenizer or vocabulary" in said.err


def test_what_the_code_does_not_show_is_seen_in_the_tokens(
    texts: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function may read something that no hash of it covers: the tokens are a part of the data's."""
    reads = CODE.replace("return text.casefold()", 'return getattr(text, open("how.txt").read())()')
    assert reads != CODE
    Path("own_reader.py").write_text(reads)
    Path("how.txt").write_text("lower")
    begin = ("radius", "-m", "own_reader:model", *HOW["words"], "-d", "own.tsv", *QUICK)
    assert ask(*begin, "-o", "run").code == 0
    Path("how.txt").write_text("title")
    assert "the data are not what this run was begun with" in ask("resume", "run", "--trust").err


def test_a_monitor_of_another_vocabulary_and_one_from_before(texts: Path, ask: Ask) -> None:
    assert (
        ask(
            "monitor", "fit", "own_reader:model", *HOW["usual"], "--mutation", "vectors:0.9", "-o", "mine"
        ).code
        == 0
    )
    kept = json.loads(Path("mine/monitor.json").read_text())
    assert kept["version"] == 3
    older = {key: value for key, value in kept.items() if key not in ("tokenizer", "digest")} | {"version": 2}
    Path("mine/monitor.json").write_text(json.dumps({**older, "digest": digest(older)}))
    assert ask("monitor", "score", "mine", "--trust", "good film").code == 0  # there was no other way then
    with pytest.raises(BadInput, match="another tokenizer or vocabulary"):
        hf.Monitor.load("mine", load_network(options("file")))
    Path("mine/monitor.json").write_text(json.dumps(kept))
    Path("own.txt").write_text("\n".join(WORDS[::-1]) + "\n")
    assert "another tokenizer or vocabulary" in ask("monitor", "score", "mine", "--trust", "good film").err


def test_tokenizers_that_are_refused(texts: Path, refused: Ask) -> None:
    begin = ("radius", "-d", "own.tsv", "-o", "run", "-m")
    assert "does not read tokens" in refused(*begin, "lstm.onnx", "--tokenizer", "own.json").err
    assert (
        "nowhere.json: no such file" in refused(*begin, "own_reader:model", "--tokenizer", "nowhere.json").err
    )
    assert (
        "own_reader has no 'nothing'"
        in refused(*begin, "own_reader:model", "--tokenizer", "own_reader:nothing").err
    )
    assert (
        "--tokenizer has no effect"
        in refused(*begin, "cli_own_code:black_box", "--tokenizer", "own.json").err
    )
    assert (
        "own.tsv, line 1: the tokenizer model failed"
        in refused(*begin, "own_reader:model", "--tokenizer", "own_reader:model").err
    )
