"""Whole words that a tokenizer splits are replaced by others of any length: the truth is every sentence, tokenised anew."""

import itertools
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

import holdfast as hf
from holdfast.cli import main
from holdfast.errors import BadInput
from holdfast.region.edits import KINDS, EditRules, TextEdits

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
PIECES = [
    "the",
    "film",
    "was",
    "good",
    "##s",
    "awe",
    "##some",
    "fine",
    "bad",
    "great",
    "aw",
    "##ful",
    "a",
    "plot",
]
SETS = {
    "good": ["awesome", "fine"],
    "bad": ["awful", "good"],
    "awesome": ["good", "great"],
    "film": ["plot"],
    "was": ["was", "fine"],
}
TEXTS = ["the film was good", "a bad plot", "the goods was awesome", "awesome awful film"]


def word_pieces() -> Tokenizer:
    inner = Tokenizer(models.WordPiece({w: i for i, w in enumerate(SPECIAL + PIECES)}, unk_token="[UNK]"))
    inner.normalizer, inner.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    inner.decoder = decoders.WordPiece()
    inner.add_special_tokens(SPECIAL)
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return inner


def spaced_pieces() -> Tokenizer:
    """As RoBERTa's: a token knows the space before it, so the first word of a text is written otherwise."""
    words = sorted({*(" ".join(TEXTS).split()), *itertools.chain(*SETS.values())})
    letters = sorted({"Ġ", *"".join(words)})
    merges, known = [], dict.fromkeys(letters)
    for word in ("Ġgood", "Ġfilm", "film", "Ġawe", "some", "Ġthe", "awe", "Ġwas"):
        whole = word[0]
        for letter in word[1:]:
            merges.append((whole, letter))
            whole += letter
            known[whole] = None
    vocabulary = {token: place for place, token in enumerate([*SPECIAL, *known])}
    inner = Tokenizer(models.BPE(vocabulary, list(dict.fromkeys(merges)), unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(SPECIAL)
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return inner


class Reader(nn.Module):
    """Depends on every token and on the order of all."""

    def __init__(self, words: int, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.table, self.cell, self.head = (
            nn.Embedding(words, 4),
            nn.RNN(4, 6, batch_first=True),
            nn.Linear(6, 2),
        )

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.head(self.cell(self.table(ids))[0].mean(1))
        return found


def sentences(text: str, sets: dict[str, list[str]]) -> list[tuple[int, str]]:
    """Every sentence that replaces whole words, with the number of replaced words."""
    words = text.split()
    choices = itertools.product(*[dict.fromkeys([word, *sets.get(word, [])]) for word in words])
    return [(sum(a != b for a, b in zip(made, words, strict=True)), " ".join(made)) for made in choices]


@pytest.mark.parametrize("made", [word_pieces, spaced_pieces])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_count_is_that_of_all_sentences(made: Any, seed: int) -> None:
    """The network's own answer to every sentence, tokenised as a whole, gives the same number of replaced words."""
    inner = made()
    model = Reader(inner.get_vocab_size(), seed).eval()
    with torch.no_grad():  # About half of the sentences have either class.
        every = [model(torch.tensor([inner.encode(s).ids]))[0] for t in TEXTS for _, s in sentences(t, SETS)]
        model.head.bias[0] += torch.stack([one[1] - one[0] for one in every]).median()
    net = hf.Network.from_torch(model, tokenizer=PreTrainedTokenizerFast(tokenizer_object=inner))

    def answer(text: str) -> int:
        return int(model(torch.tensor([inner.encode(text).ids])).argmax())

    y = [answer(text) for text in TEXTS]
    shown = 0
    for text, label, bracket in zip(TEXTS, y, hf.radius(net, TEXTS, y, substitutes=SETS), strict=True):
        broken = [(count, sentence) for count, sentence in sentences(text, SETS) if answer(sentence) != label]
        truth = min((count for count, _ in broken), default=math.inf)
        assert bracket.lower.value == bracket.upper.value == (truth - 1 if broken else math.inf)
        if broken:
            witness = bracket.upper.evidence.witness
            assert witness is not None
            assert (truth, net.sentence(witness)) in broken
            shown += 1
    assert shown


def test_part_of_a_longer_word_is_not_replaced() -> None:
    net = hf.Network.from_torch(
        Reader(18, 0).eval(), tokenizer=PreTrainedTokenizerFast(tokenizer_object=word_pieces())
    )
    rules = hf.Edits(substitute=2, substitutes={"good": ["awesome"]}).rules(net)
    for text, count in (("the goods", 0), ("good goods", 1), ("good good", 2)):
        options = TextEdits(rules, tuple(net.tokens(text).tolist()))
        assert options.most == count, text


def test_phrases_among_other_edits_are_counted_and_found_again() -> None:
    """Random rules: every text that the edits make has a distance of at most its edits, and counting bounds the texts."""
    draw = random.Random(0)
    for _ in range(30):
        phrases = {(1,): ((2, 3),), (1, 2): ((3,), (0, 0, 1)), (3,): ((3, 3),)}
        budgets = tuple(draw.randint(0, 2) for _ in KINDS)
        rules = EditRules(
            (max(1, budgets[0]), *budgets[1:]), 2, insertions=(0,), phrases=tuple(sorted(phrases.items())), continuing=frozenset({2}) if draw.random() < 0.5 else frozenset()
        )  # fmt: skip
        text = tuple(draw.randint(0, 3) for _ in range(draw.randint(1, 5)))
        options = TextEdits(rules, text)
        for count in (1, 2):
            made = {}
            ways = 0
            for other, edits in options.texts(count):
                ways += 1
                made[other] = edits
                assert options.apply(edits) == other
                fewest = options.fewest(other)
                assert fewest is not None
                assert len(fewest) <= count
                assert options.apply(fewest) == other
            assert options.count(count) >= ways >= len(made)
        for one in options.extensions(()):
            for two in options.extensions(one):
                assert rules.allows(tuple(sum(e.kind == k for e in two) for k in range(len(KINDS))))


def test_a_bert_of_hugging_face_is_enumerated_by_its_class_names(tmp_path: Path) -> None:
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=18,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        id2label={0: "sad", 1: "glad"},
        attn_implementation="eager",
    )
    model = BertForSequenceClassification(config).eval()
    word_pieces().save(str(tmp_path / "tokenizer.json"))
    net = hf.Network.from_torch(model, tokenizer=tmp_path / "tokenizer.json")
    assert net.classes == ("sad", "glad")
    y = [net.classes[int(net(net.embed(net.tokens(text)[None])).argmax())] for text in TEXTS]
    found = hf.radius(net, TEXTS, y, substitutes=SETS)
    assert all(bracket.closed for bracket in found)
    assert any(name in str(found) for name in y)


def test_words_that_the_tokenizer_cannot_write_are_named() -> None:
    net = hf.Network.from_torch(
        Reader(18, 0).eval(), tokenizer=PreTrainedTokenizerFast(tokenizer_object=word_pieces())
    )
    with pytest.warns(UserWarning, match=r"1 hold characters that .* \(höchst"):
        hf.radius(net, TEXTS[:1], [0], substitutes={"good": ["awesome", "höchst"]})
    with pytest.raises(BadInput, match="none of these words"):
        hf.Edits(substitute=1, substitutes={"ö": ["ü"]}).rules(net)


def run_command(*words: str) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as ended:
        main([*words])
    return int(ended.value.code or 0)


MODEL = """
import torch
from torch import nn

class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(18, 2), nn.Linear(2, 2)
        with torch.no_grad():  # Only "##ful" counts.
            self.table.weight.zero_()
            self.table.weight[15, 0] = 10.0
            self.head.weight.copy_(torch.tensor([[0.0, 0.0], [1.0, 0.0]]))
            self.head.bias.copy_(torch.tensor([1.0, 0.0]))

    def forward(self, ids):
        return self.head(self.table(ids).sum(1))

def reader():
    return Reader().eval()
"""


def test_a_run_replaces_whole_words_and_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("whole_words_model.py").write_text(MODEL)
    word_pieces().save("tokenizer.json")
    Path("texts.tsv").write_text("0\tthe film was bad\n0\tthe plot was good\n")
    Path("sets.json").write_text('{"bad": ["awful"], "good": ["awesome"], "never": ["seen"]}')
    model = ("--model", "whole_words_model:reader", "--data", "texts.tsv")
    files = ("--tokenizer", "tokenizer.json", "--substitutes", "sets.json")
    assert run_command("radius", *model, *files, "--executor", "here", "--out", "run") == 0
    assert "whole words are replaced" in " ".join(capsys.readouterr().out.split())
    with hf.Store.read("run") as store:
        [broken, kept] = sorted((record for record in store.records()), key=lambda one: one.key.index)
        assert (broken.bracket.upper.value, kept.bracket.lower.value) == (0.0, math.inf)
    assert run_command("show", "run", "--input", "0") == 0
    assert "awful" in capsys.readouterr().out
    assert run_command("report", "run") == 0
    assert "<ins>awful</ins>" in Path("run/report.html").read_text()
    now = ("--with", "tokenizer=tokenizer.json", "--with", "substitutes=sets.json")
    assert run_command("check", "run", "--all", *model, *now) == 0
    assert "all held" in capsys.readouterr().out
