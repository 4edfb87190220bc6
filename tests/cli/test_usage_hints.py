"""Options, commands and words of other tools: the answer names what is meant here; exit code 2."""

import pytest
from cli_workshop import Ask

WRONG = [
    ("radius --eps 0.1", ["--eps", "--at 0.05", "holdfast worst --radius"]),
    ("radius --timeout 5", ["--timeout", "It is called --seconds here"]),
    ("radius --net a.onnx", ["It is called --model here"]),
    ("radius --output-dir runs", ["It is called --out here"]),
    ("radius --attack pgd", ["It is called --methods here"]),
    ("radius --gpu", ["Write --device cuda"]),
    ("radius --resume", ["holdfast resume FOLDER"]),
    ("radius --batch-size 8", ["Leave it out", "--memory"]),
    ("radius --domian 0,1", ["Did you mean --domain?"]),
    ("radius --zzz", ["'holdfast radius --help' lists them"]),
    ("radius --model a.onnx --data d.npz --out r --domain 0 1", ["--domain 0,1"]),
    ("reach --model a.onnx", ["takes the model without an option", "holdfast reach MODEL"]),
    ("worst --eps 0.1", ["It is called --radius here"]),
    ("raduis", ["No such command 'raduis'", "'radius'"]),
    ("certify", ["Did you mean 'radius'?"]),
    ("train", ["Did you mean 'harden'?"]),
    ("zzzzz", ["'holdfast --help' lists the commands"]),
    ("radius --model mine.py --data d.npz --out r", ["mine:function"]),
    ("radius --model holdfast.datasets.digits_networks:digit_cnn --data d.npz --out r", ["Did you mean 'digits_cnn'?"]),
    ("radius --model holdfast.datasets.digits_networks:digits_cnn --data holdfast.datasets.digits:images --domain 0,1 --out r --tier tigth", ["Did you mean 'tight'?"]),
]  # fmt: skip


@pytest.mark.parametrize(("line", "words"), WRONG, ids=[line[:40] for line, _ in WRONG])
def test_what_is_meant_is_named(line: str, words: list[str], ask: Ask) -> None:
    answer = ask(*line.split())
    text = " ".join((answer.out + answer.err).replace("│", " ").split())
    assert answer.code == 2, text
    for word in words:
        assert word in text, text
