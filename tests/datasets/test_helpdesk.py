"""The embedded help desk: its sentences, its substitutes and the LSTM stored with them."""

import hashlib
import subprocess
import sys
from collections import Counter
from importlib.resources import files

import pytest
import torch
from torch import nn

from holdfast.datasets import helpdesk
from holdfast.errors import BadInput

TRAINED_ON = "68edc1fb70a4f604"


def test_sentences_are_short_plain_and_all_different():
    every = helpdesk.sentences("train").text + helpdesk.sentences("test").text
    assert len(every) == len(set(every)) == 440
    for text in every:
        assert 4 <= len(text.split()) <= 12, text
        assert text == " ".join(text.lower().split())
        assert set(text) <= set("abcdefghijklmnopqrstuvwxyz' "), text


@pytest.mark.parametrize(("split", "each"), [("train", 44), ("test", 11)])
def test_every_intent_has_the_same_share(split, each):
    found = helpdesk.sentences(split)
    assert Counter(found.y.tolist()) == dict.fromkeys(range(8), each)
    assert len(found.text) == len(found.tokens) == len(found.y)


def test_the_sentences_are_those_the_network_was_trained_on():
    """A word more or less would give every word another number and leave the stored weights without a meaning."""
    text = "\n".join([*helpdesk.sentences("train").text, *helpdesk.vocabulary()])
    assert hashlib.sha256(text.encode()).hexdigest().startswith(TRAINED_ON)


def test_tokens_are_the_numbers_of_the_words():
    words = helpdesk.vocabulary()
    assert words[0] == "<unk>"
    assert len(words) == len(set(words))
    text = helpdesk.sentences("train").text[0]
    assert [words[t] for t in helpdesk.tokens(text)] == text.split()
    assert torch.equal(helpdesk.tokens("Hello, zyzzyva!"), torch.tensor([words.index("hello"), 0]))
    assert torch.equal(helpdesk.tokens(["my", "order"]), helpdesk.tokens("my order"))
    assert helpdesk.tokens("").shape == (0,)


def test_substitutes_are_known_words_and_never_the_word_itself():
    known = set(helpdesk.vocabulary())
    for word, others in helpdesk.substitutes().items():
        assert others, word
        assert word not in others
        assert len(set(others)) == len(others)
        assert {word, *others} <= known, {word, *others} - known
        assert helpdesk.sets()[word] == [word, *others]


def test_most_sentences_can_be_attacked():
    sets = helpdesk.substitutes()
    attackable = [any(word in sets for word in text.split()) for text in helpdesk.sentences("test").text]
    assert sum(attackable) >= 0.75 * len(attackable)


def test_stored_weights_reach_their_accuracy_without_being_perfect():
    net, test = helpdesk.network(), helpdesk.sentences("test")
    answers = torch.stack([net.ask_tokens(row[None])[0].argmax() for row in test.tokens])
    assert 0.9 <= (answers == test.y).double().mean() < 1


def test_some_single_substitution_changes_an_answer():
    """A network that no substitute moves would leave a monitor nothing to say."""
    net, sets, moved = helpdesk.network(), helpdesk.substitutes(), 0
    for text in helpdesk.sentences("test").text:
        words = text.split()
        mutants = [
            [*words[:i], other, *words[i + 1 :]]
            for i, word in enumerate(words)
            for other in sets.get(word, ())
        ]
        answers = net.ask_tokens(torch.stack([helpdesk.tokens(row) for row in [words, *mutants]])).argmax(1)
        moved += bool((answers != answers[0]).any())
    assert moved >= 5


def test_the_network_is_small_finite_and_in_eval_mode():
    module = helpdesk.helpdesk_lstm()
    assert isinstance(module.recurrent, nn.LSTM)
    assert not any(part.training for part in module.modules())
    assert all(p.isfinite().all() and p.dtype == torch.float32 for p in module.parameters())
    assert len((files("holdfast.datasets") / "words" / "helpdesk_lstm.safetensors").read_bytes()) < 300_000


def test_the_answer_after_every_word_is_the_answer_to_the_prefix():
    module, row = helpdesk.helpdesk_lstm(), helpdesk.tokens("please cancel my order")
    with torch.no_grad():
        every = module.after_every_word(row[None])[0]
        prefixes = torch.cat([module(row[None, : i + 1]) for i in range(len(row))])
    assert torch.allclose(every, prefixes, atol=1e-6)


def test_loading_leaves_the_random_state_alone():
    before = torch.get_rng_state()
    helpdesk.network()
    assert torch.equal(torch.get_rng_state(), before)


def test_an_unknown_split_is_refused():
    with pytest.raises(BadInput, match="'train' and 'test'"):
        helpdesk.sentences("validation")


def test_the_command_lines_data_are_the_sentences():
    found = helpdesk.test()
    assert found["names"] == list(helpdesk.sentences("test").text)
    assert len(found["x"]) == len(helpdesk.train()["x"]) / 4
    assert found["classes"] == list(helpdesk.INTENTS)


def test_sentences_need_no_safetensors():
    code = "import sys; sys.modules['safetensors'] = None; from holdfast.datasets import helpdesk; helpdesk.sentences('test').tokens"
    subprocess.run([sys.executable, "-c", code], check=True)
