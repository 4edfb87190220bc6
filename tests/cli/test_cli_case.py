"""`holdfast case`: the document states each claim, its certificate and its residual risk, and nothing that no run shows."""

import json
from pathlib import Path

import onnx
import pytest
from cli_workshop import Ask
from test_cli_verify import SQUARE, write_net

from holdfast.certificates.claim import pack_proof
from holdfast.evidence.standards import NOTHING
from holdfast_check.container import read_container
from holdfast_check.proof import SCHEMA

ABOUT = """
title = "Braking below the limit"
system = "the brake network"
operating_domain = "dry roads"
signers = ["A. Example, safety engineer"]
[[requirement]]
id = "SR-1"
text = "The brake stays below 2.1."
run = "holds"
[[requirement]]
id = "SR-2"
run = "fails"
inputs = ["0"]
[[assumption]]
text = "Sensors are calibrated."
owner = "B. Example"
"""


@pytest.fixture
def two(workshop: Path, ask: Ask) -> Path:
    """A run whose property holds, with its certificate, and one whose property is violated."""
    write_net(workshop / "small.onnx")
    (workshop / "names.csv").write_text("variable,name,unit\nX_0,speed,m/s\nX_1,gap,m\nY_0,brake,\n")
    (workshop / "unsat.vnnlib").write_text(SQUARE + "(assert (>= Y_0 2.1))\n")
    (workshop / "sat.vnnlib").write_text(SQUARE + "(assert (>= Y_0 1.9))\n")
    for out, spec in (("holds", "unsat"), ("fails", "sat")):
        assert (
            ask(
                "verify",
                "small.onnx",
                f"{spec}.vnnlib",
                "--names",
                "names.csv",
                "--out",
                out,
                "--certificates",
            ).code
            == 0
        )
    (workshop / "about.toml").write_text(ABOUT)
    return workshop


def test_a_case_states_claims_certificates_risks_and_who_answers(two: Path, ask: Ask) -> None:
    said = ask("case", "holds", "fails", "--out", "case", "--about", "about.toml")
    assert said.code == 0, said
    assert "2 claims: 1 proved, 1 violated, 0 open, 0 measured; 1 certificates accepted" in said.out
    told = json.loads((two / "case" / "case.json").read_text())
    holds, fails = told["claims"]
    assert (holds["requirement"], holds["verdict"], holds["accepted"]) == ("SR-1", "proved", True)
    assert holds["sentence"].startswith(
        "for all speed -1 to 1 m/s, gap -1 to 1 m: brake < 2.1; largest proved value"
    )
    assert len(holds["digest"]) == 64
    assert (fails["requirement"], fails["verdict"], fails["accepted"]) == ("SR-2", "violated", False)
    assert "counterexample" in fails["risk"]
    assert fails["sentence"].startswith("for all speed -1 to 1 m/s, gap -1 to 1 m: brake < 1.9 (")
    assert fails["certificate"].startswith("counterexample accepted: ")
    assert fails["counterexample"].startswith("at speed ")
    assert "it is not so that brake < " in fails["counterexample"]
    # One model with both runs, and requirements with the verdict and the evidence of their claims.
    [model] = told["models"]
    assert (model["name"], model["claims"]) == ("small.onnx", 2)
    kept = [
        (one["requirement"], one["verdict"], one["accepted"], one["counterexamples"])
        for one in told["requirements"]
    ]
    assert kept == [("SR-1", "proved", 1, 0), ("SR-2", "violated", 0, 1)]
    page = (two / "case" / "case.html").read_text()
    for text in (
        "SR-1",
        "dry roads",
        "A. Example, safety engineer",
        "Sensors are calibrated.",
        "B. Example",
        "ISO/IEC 24029-2",
        told["sha256"],
    ):
        assert text in page
    rows = {row["clause"]: row["shown"] for row in told["standards"]}
    assert rows["5.4"] == NOTHING
    assert "1 proved, 1 violated, 0 open of 2 claims" in rows["5.3"]
    assert rows["target"] == "1 model named by digest"


def test_a_run_about_several_models_names_each(workshop: Path, ask: Ask) -> None:
    """The digest of the question is that of the first model of the list, which would stand for all of them."""
    for number, name in enumerate(("a.onnx", "b.onnx")):
        write_net(workshop / name)
        model = onnx.load(workshop / name)
        model.producer_name = str(number)
        onnx.save(model, workshop / name)
    (workshop / "spec.vnnlib").write_text(SQUARE + "(assert (>= Y_0 2.1))\n")
    (workshop / "list.csv").write_text("a.onnx,spec.vnnlib,60\nb.onnx,spec.vnnlib,60\n")
    assert ask("verify", "list.csv", "--out", "run", "--certificates").code == 0
    (workshop / "about.toml").write_text('[[requirement]]\nid = "SR-1"\n')
    assert ask("case", "run", "--out", "case", "--about", "about.toml").code == 0
    told = json.loads((workshop / "case" / "case.json").read_text())
    assert [model["name"] for model in told["models"]] == ["a.onnx", "b.onnx"]
    assert len({model["digest"] for model in told["models"]}) == 2
    [one] = told["requirements"]
    assert (one["claims"], one["proved"], one["accepted"], one["first"]) == (2, 2, 2, 1)
    page = (workshop / "case" / "case.html").read_text()
    assert "2 of 2 claims proved" in page
    assert "2 of 2 proofs accepted by the checker" in page


def test_a_case_asks_the_checker_again_and_shows_what_nobody_stated(two: Path, ask: Ask) -> None:
    """A certificate that was changed is shown as rejected, and the claim then rests on the engine."""
    [file] = (two / "holds" / "proofs").glob("*.proof")
    metadata, arrays = read_container(file.read_bytes())
    file.write_bytes(
        pack_proof(json.loads(metadata[SCHEMA]), {**arrays, "property/offset": arrays["property/offset"] * 0})
    )
    assert ask("case", "holds", "--out", "case").code == 0
    [claim] = json.loads((two / "case" / "case.json").read_text())["claims"]
    assert claim["certificate"].startswith("rejected: ")
    assert not claim["accepted"]
    assert "rests on holdfast's engine" in claim["risk"]
    assert (claim["requirement"], claim["text"]) == ("R1", "not stated")
    (two / "small.onnx").rename(two / "moved.onnx")
    assert ask("case", "holds", "--out", "case").code == 0
    [claim] = json.loads((two / "case" / "case.json").read_text())["claims"]
    assert claim["certificate"].startswith("not checked: the model with sha256")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("title =", "not a readable TOML file"),
        ("titel = 'x'", "'titel' is unknown"),
        ("[[requirement]]\ntext = 'x'", "look at 'id'"),
        ("[[assumption]]\ntext = 'x'\nowners = 'y'", "look at 'owners'"),
        ("[[requirement]]\nid = 'SR-9'\nrun = 'other'", "requirement 'SR-9' matches no record"),
        ("requirement = 3", "write [[requirement]]"),
        ("signers = 'x'", "signers is a list"),
    ],
)
def test_a_statement_that_is_wrong_is_refused(text: str, told: str, two: Path, ask: Ask) -> None:
    (two / "about.toml").write_text(text)
    said = ask("case", "holds", "--out", "case", "--about", "about.toml")
    assert said.code == 2
    assert told in said.err
