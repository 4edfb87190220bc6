"""Text becomes tokens as the documents say, what becomes of every piece is said, and a tokenizer is known again."""

import base64
import json
import re
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import nn

import holdfast as hf
from holdfast.api.perturbation import Perturbation
from holdfast.api.radius import radius_problems
from holdfast.errors import BadInput, MissingExtra, UnreadableFile
from holdfast.network import tokenizer_check
from holdfast.network.text import CustomTokenizer, HuggingFace, Text, WordTokenizer, read_texts, tokenizer_of

VOCABULARY = ("<unk>", "the", "film", "Paris", "paris", "isn't", "good", ",", "café", "U.S.", "", "good")
PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "film", "good", "##s", "##ish", ",", "!")


class Mean(nn.Module):
    """Reads texts of any length."""

    def __init__(self, words: int = len(VOCABULARY)) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(words, 3), nn.Linear(3, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.head(self.table(tokens).mean(1))
        return answer


def bert() -> Tokenizer:
    made = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(PIECES)}, unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = (
        normalizers.BertNormalizer(lowercase=True),
        pre_tokenizers.BertPreTokenizer(),
    )
    made.add_special_tokens(["[UNK]", "[CLS]", "[SEP]"])
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return made


@pytest.mark.parametrize(
    ("text", "ids", "left_out"),
    [
        ("the film", (1, 2), ()),
        ("The  FILM\t", (1, 2), ()),
        ("Paris paris PARIS", (3, 4, 4), ()),  # as it stands, before lower case
        ("isn't Isn't 'isn't'", (5, 5, 5), ("'", "'")),
        ("good, film!", (6, 7, 2), ("!",)),  # the vocabulary has a comma and no exclamation mark
        ("(the) “Film”…", (1, 2), ("(", ")", "“", "”", "…")),
        ("U.S. U.S.,", (9, None, 7), (".",)),  # without the signs at its ends the second is U.S, which is unknown
        ("the\u00a0film\u2028good", (1, 2, 6), ()),
        ("café cafe\u0301", (8, None), ()),  # signs are taken as they are composed
        ("-film #film", (None, None), ()),
        ("... , ,", (7, 7), (".", ".", ".")),
        ("<unk> zebra", (0, None), ()),
        ("good", (6,), ()),  # the first of two
    ],
)  # fmt: skip
def test_words_of_the_vocabulary(text: str, ids: tuple[int | None, ...], left_out: tuple[str, ...]) -> None:
    found = WordTokenizer(VOCABULARY).cut(text)
    assert (found.ids, found.left_out) == (ids, left_out)
    assert len(found.pieces) == len(found.ids)


def test_what_is_unknown_is_counted_and_named() -> None:
    found = read_texts(WordTokenizer(VOCABULARY), ["a zebra, the zebra", "good!"])
    assert [row.tolist() for row in found.tokens] == [[0, 0, 7, 1, 0], [6]]
    assert (found.unknown, found.left_out) == (3, 1)
    assert found.pieces[0] == ("a", "zebra", ",", "the", "zebra")
    assert (
        found.notes[0]
        == "3 of 6 words are unknown to the network and read as its token for such words: 'a', 'zebra'"
    )
    assert found.notes[1] == "1 signs or words have no token and are left out: '!'"
    assert read_texts(WordTokenizer(VOCABULARY), ["the film"]).notes == ()
    skipped = read_texts(WordTokenizer(VOCABULARY), ["a zebra, the zebra"], policy="skip")
    assert (skipped.tokens[0].tolist(), skipped.pieces) == ([7, 1], [(",", "the")])
    assert "3 of 5 words are unknown to the network and left out" in skipped.notes[0]
    assert read_texts(WordTokenizer(VOCABULARY), ["zebra"], unk=5).tokens[0].tolist() == [5]


@pytest.mark.parametrize(
    ("text", "policy", "said"),
    [
        (
            "the zebra",
            "unk",
            "file, line 3: word 2: 'zebra' is not in the vocabulary, which has no <unk> either",
        ),
        ("the zebra", "error", "file, line 3: word 2: 'zebra' is not in the vocabulary. Fit"),
        ("zebra", "skip", "file, line 3: none of its words is known"),
        ("", "unk", "file, line 3: the text '' is empty"),
        (" \t\u00a0", "unk", "is empty"),
        ("?!", "unk", "nothing of it becomes a token"),
        (3, "unk", "file, line 3: expected a text, got int"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_place(text: Any, policy: Any, said: str) -> None:
    with pytest.raises(BadInput) as refused:
        read_texts(WordTokenizer(VOCABULARY[1:7]), [text], ["file, line 3"], policy=policy)
    assert said in str(refused.value)


def test_a_list_of_texts_is_an_input_and_warned_of() -> None:
    net = hf.Network.from_torch(Mean().eval(), vocabulary=VOCABULARY)
    with pytest.warns(UserWarning, match="1 of 4 words are unknown .*: 'zebra'"):
        problems = radius_problems(net, ["The film", "good", "zebra"], [0, 0, 0], norm=2)
    given = {
        key.index: problem.region.centre[row] for problem in problems for row, key in enumerate(problem.keys)
    }
    for place, ids in enumerate(([1, 2], [6], [0])):
        assert torch.equal(given[place], net.embed(torch.tensor(ids)))
    assert net.tokens("Good film").tolist() == [6, 2]
    region = Perturbation(radius=0.01).region_around(net, ["The film", "good film"])
    assert torch.equal(region.centre, net.embed(torch.tensor([[1, 2], [6, 2]])))
    with pytest.raises(BadInput, match="texts of 1 and of 2 tokens"):
        hf.risk(net, ["the film", "good"], "robustness", radius=0.01)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="a list of texts"):
        hf.radius(net, "the film", [0])  # type: ignore[arg-type]


def test_text_for_a_network_that_cannot_read_it() -> None:
    with pytest.raises(BadInput, match="takes numbers"):
        hf.radius(hf.Network.from_torch(nn.Linear(2, 2).eval()), ["text"], [0])
    with pytest.raises(BadInput, match=r"no vocabulary and no tokenizer.*--vocabulary.*--tokenizer"):
        hf.Network.from_torch(Mean().eval(), tokens=True).tokens("text")


# ---- functions


@pytest.mark.parametrize(
    ("function", "ids"),
    [
        (lambda text: text.split("/"), (1, None, 6)),
        (lambda _: [1, 2, 0], (1, 2, None)),
        (lambda _: np.array([2, 1]), (2, 1)),
        (lambda _: torch.tensor([2, 1]), (2, 1)),
        (lambda _: {"input_ids": [4, 5]}, (4, 5)),
        (lambda text: (word for word in text.lower().split("/")), (1, None, 6)),
    ],
)
def test_a_function_of_ones_own(function: Callable[[str], Any], ids: tuple[int | None, ...]) -> None:
    assert CustomTokenizer(function, VOCABULARY, len(VOCABULARY)).cut("the/Zebra/good").ids == ids


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda text: text, "must answer with a list of words or of token ids"),
        (lambda _: [1, "the"], "must answer with"),
        (lambda _: [0.5], "must answer with"),
        (lambda _: [True], "must answer with"),
        (lambda _: None, "failed on 'the film' \\(TypeError"),
        (lambda _: 1 / 0, "failed on 'the film' \\(ZeroDivisionError: division by zero"),
        (lambda _: [12], "token 12 .* but the network has 12 tokens"),
        (lambda _: [-1], "token -1"),
        (lambda _: [], "nothing of it becomes a token"),
    ],
)
def test_a_function_that_answers_something_else(function: Callable[[str], Any], said: str) -> None:
    net = hf.Network.from_torch(Mean().eval(), vocabulary=VOCABULARY, tokenizer=function)
    with pytest.raises(BadInput, match=said):
        net.tokens("the film")


def test_a_function_of_ids_needs_no_words_and_one_of_words_does() -> None:
    net = hf.Network.from_torch(Mean().eval(), tokenizer=lambda text: [len(word) for word in text.split()])
    assert net.tokens("a good film").tolist() == [1, 4, 4]
    assert net.words(net.tokens("a good film")) == ["1", "4", "4"]
    with pytest.raises(BadInput, match="need a vocabulary"):
        hf.Network.from_torch(Mean().eval(), tokenizer=str.split).tokens("a good film")


# ---- tokenizer.json


def test_a_tokenizer_file_cuts_as_its_package_does(tmp_path: Path) -> None:
    inner = bert()
    inner.save(str(tmp_path / "tokenizer.json"))
    for given in (tmp_path / "tokenizer.json", str(tmp_path), inner):
        net = hf.Network.from_torch(Mean(len(PIECES) + 2).eval(), tokenizer=given)
        assert net.vocabulary == (
            *PIECES,
            "<11>",
            "<12>",
        )  # the table may be longer than the tokenizer's list
        for text in ("The  films, GOODISH!", "zebra film", "é film", "the \u200bfilm"):
            strange = text != "The  films, GOODISH!"
            with (
                pytest.warns(UserWarning, match="unknown to the network|left out")
                if strange
                else nullcontext()
            ):
                assert net.tokens(text).tolist() == inner.encode(text).ids
    found = read_texts(HuggingFace(inner.to_str(), "t"), ["The films zebra [UNK] \u200b"])
    assert found.pieces[0] == ("[CLS]", "The", "film", "s", "zebra", "[UNK]", "[SEP]")
    assert (found.unknown, found.left_out) == (
        1,
        1,
    )  # who writes [UNK] means it; a sign that the normaliser drops is told of


def test_padding_is_left_away_and_what_is_cut_off_is_told() -> None:
    inner = bert()
    inner.enable_padding(length=12)
    inner.enable_truncation(4)
    found = read_texts(HuggingFace(inner.to_str(), "t"), ["the film good film"])
    assert found.tokens[0].tolist() == [2, 4, 5, 3]
    assert found.notes == ("2 signs or words have no token and are left out: 'good', 'film'",)


def test_letters_that_a_file_without_an_unknown_token_would_drop_are_told_of() -> None:
    inner = Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    assert HuggingFace(inner.to_str(), "t").cut("ab zz a") == Text(("a", "b", "a"), (0, 1, 0), ("zz",))
    strict = Tokenizer(models.WordLevel({"a": 0}))
    with pytest.raises(BadInput, match="cannot read 'z'"):
        read_texts(HuggingFace(strict.to_str(), "t"), ["z"])
    for wrong in (
        [7, 99],
        [2, 3],
    ):  # a token of the template beyond the list, and more tokens than the template has
        content = json.loads(bert().to_str())
        content["post_processor"]["special_tokens"]["[CLS]"]["ids"] = wrong
        with pytest.raises(BadInput, match="names tokens that it does not have"):
            read_texts(HuggingFace(json.dumps(content), "t"), ["film"])
    with pytest.raises(BadInput, match="cannot read"):
        read_texts(HuggingFace(bert().to_str(), "t"), ["half a sign \ud800"])


def test_a_file_that_is_none_or_belongs_to_another_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tokenizer.json"
    for content in ("{", "[]", json.dumps({"model": 3}), ""):
        file.write_text(content)
        with pytest.raises(UnreadableFile, match=r"tokenizer\.json: is no tokenizer"):
            hf.Network.from_torch(Mean().eval(), tokenizer=file)
    with pytest.raises(UnreadableFile, match="no such file"):
        hf.Network.from_torch(Mean().eval(), tokenizer="nowhere.json")
    content = json.loads(bert().to_str())
    content["model"]["vocab"]["film"] = (
        2**32 - 1
    )  # a hole over which the package itself would walk for minutes
    file.write_text(json.dumps(content))
    with pytest.raises(BadInput, match=f"tokens 0 to {2**32 - 1}, but"):
        hf.Network.from_torch(Mean().eval(), tokenizer=file)
    bert().save(str(file))
    with pytest.raises(BadInput, match="tokens 0 to 10, but the network's embedding has 9 rows"):
        hf.Network.from_torch(Mean(9).eval(), tokenizer=file)
    with pytest.raises(BadInput, match="tokenizer is int"):
        hf.Network.from_torch(Mean().eval(), tokenizer=3)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingExtra, match=r"pip install 'holdfast\[text\]'"):
        hf.Network.from_torch(Mean().eval(), tokenizer=file)


def test_a_tokenizer_is_known_again() -> None:
    def one(text: str) -> list[str]:
        return text.split()

    def two(text: str) -> list[str]:
        return text.lower().split()

    other = bert()
    other.enable_truncation(4)
    made = [
        WordTokenizer(VOCABULARY),
        WordTokenizer(VOCABULARY[::-1]),
        CustomTokenizer(one, VOCABULARY, 12),
        CustomTokenizer(two, VOCABULARY, 12),
        CustomTokenizer(one, VOCABULARY[1:], 11),
    ]
    made += [HuggingFace(tokenizer.to_str(), "t") for tokenizer in (bert(), other)]
    assert len({tokenizer.fingerprint for tokenizer in made}) == len(made)
    assert (
        HuggingFace(bert().to_str(pretty=True), "elsewhere").fingerprint
        == HuggingFace(bert().to_str(), "t").fingerprint
    )
    assert WordTokenizer(list(VOCABULARY)).fingerprint == WordTokenizer(VOCABULARY).fingerprint


def test_the_documents_way_in_for_a_hugging_face_classifier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    monkeypatch.chdir(tmp_path)
    bert().save("tokenizer.json")
    page = (Path(__file__).parents[2] / "docs" / "networks.md").read_text()
    (block,) = re.findall(r"```py\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(block, "networks.md", "exec"), names)
    assert isinstance(names["model"], transformers.BertForSequenceClassification)
    for given in (
        "tokenizer.json",
        names["tokenizer"],
        names["tokenizer"].__call__,
    ):  # a file, the object, any function of that kind
        net = hf.Network.from_torch(Mean(len(PIECES)).eval(), tokenizer=given)
        assert (
            net.tokens("the film, GOODISH!").tolist() == names["tokenizer"]("the film, GOODISH!")["input_ids"]
        )


def with_normalizer(normalizer: object) -> str:
    return json.dumps({**json.loads(bert().to_str()), "normalizer": normalizer})


def charsmap(says: int, holds: int) -> dict[str, str]:
    return {
        "type": "Precompiled",
        "precompiled_charsmap": base64.b64encode(says.to_bytes(4, "little") + bytes(holds)).decode(),
    }


GREEDY = 0xFFFFFFFC  # bytes, for which the package takes room before it looks whether they are there


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (with_normalizer(charsmap(GREEDY, 8)), "shorter than it says"),
        (with_normalizer({"type": "Sequence", "normalizers": [{"type": "NFC"}, charsmap(GREEDY, 8)]}), "shorter than it says"),
        (with_normalizer({"type": "Precompiled", "precompiled_charsmap": "AAA="}), "is no tokenizer"),
        (with_normalizer({"type": "Sequence", "normalizers": [
            {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 32} for _ in range(12)]}), "times as long"),
        ("[" * 100_000, "no JSON"), ("[]", "is no tokenizer"), ("{}", "is no tokenizer"), ('{"normalizer": 3}', "is no tokenizer"),
    ],
    ids=range(8),
)  # fmt: skip
def test_a_tokenizer_file_that_would_end_the_process_is_refused_in_words(
    content: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """300 bytes took 4 GiB of room eight times over, and Rust ends a process that does not get it. This process never opens such a file."""
    opened = list[str]()
    monkeypatch.setattr(HuggingFace, "__init__", lambda self, content, name, **_: opened.append(name))
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(UnreadableFile, match=words):
        tokenizer_of(tmp_path / "tokenizer.json", None, 20)
    assert not opened


def test_whatever_ends_a_process_that_opens_a_file_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for program, words in (
        ("import os; os.abort()", "ends with signal 6"), ("raise SystemExit(3)", "ends with exit code 3"),
        ("import json; print(json.dumps('no such thing'))", "is no tokenizer \\(no such thing\\)"),
    ):  # fmt: skip
        monkeypatch.setattr(tokenizer_check, "PROGRAM", program)
        with pytest.raises(UnreadableFile, match=words):
            tokenizer_check.check_tokenizer("{}", "tokenizer.json", "Write it again.")
    monkeypatch.undo()
    before = set(tokenizer_check._opened)
    tokenizer_check.check_tokenizer(bert().to_str(), "tokenizer.json", "Write it again.")
    assert len(tokenizer_check._opened - before) <= 1
