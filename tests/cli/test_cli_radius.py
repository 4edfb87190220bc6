"""`holdfast radius`, `resume`, `report` and `export` on a user's own models."""

import csv
import importlib.util
import json
import math
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from cli_workshop import WORDS, Ask

from holdfast.api.radius import Tier
from holdfast.cli.views.live import mean_bracket
from holdfast.commands.parse import one_of
from holdfast.result import Bound, Bracket, Evidence, Key, Record, trivial_bound
from holdfast.store import Store
from sizes import FULL

QUICK = ("--methods", "pgd")


def records(ask: Ask, run: str = "run") -> list[dict[str, Any]]:
    assert ask("export", run, "records.json").code == 0
    found: list[dict[str, Any]] = json.loads(Path("records.json").read_text())["records"]
    return found


@pytest.mark.parametrize("model", ["lstm.pt2", "lstm.onnx"])
def test_from_a_users_own_lstm_to_the_page(model: str, ask: Ask) -> None:
    said = ask(
        "radius",
        "--model",
        model,
        "--trust",
        "--data",
        "data.npz",
        "--norm",
        "2",
        "--limit",
        "3",
        "--out",
        "run/",
    )
    assert said.code == 0, said.err
    assert said.err == ""
    asked, rest = said.out.split("\n", 1)
    assert asked.startswith(
        "question: How far may each of the 3 inputs of data.npz move, in the L2 norm, before lstm."
    )
    assert rest.startswith("┏")  # the table, and no bar before it: this is no terminal
    for word in ("proved", "witnessed", "next: holdfast report run\n"):
        assert word in said.out
    for r in records(ask):
        assert 0 < r["lower"]["value"] < r["upper"]["value"] < 10
        assert (r["lower"]["kind"], r["upper"]["kind"]) == ("proved", "witnessed")
    before = records(ask)
    again = ask("resume", "run", "--trust")
    assert again.code == 0
    assert "3 of 3 finished before; 0 to go." in again.out
    assert records(ask) == before
    assert ask("report", "run").out == "report: run/report.html\n"
    page = Path("run/report.html").read_text()
    assert "<html" in page
    assert model in page


def test_a_drift_says_so_wherever_its_numbers_stand(ask: Ask) -> None:
    drift = "as a drift (one offset for each feature, the same in every frame)"
    said = ask("radius", "-m", "lstm.onnx", "-d", "data.npz", "--drift", "--limit", "2", *QUICK, "-o", "run")
    assert said.code == 0, said.err
    assert drift in said.out
    assert drift in " ".join(ask("show", "run", "--input", "0").out.split())
    for file in ("run.csv", "card.md", "page.html"):
        assert (
            ask(
                "export" if file == "run.csv" else "report",
                "run",
                *(() if file == "run.csv" else ("-o",)),
                file,
            ).code
            == 0
        )
        assert drift in Path(file).read_text()


def test_both_files_hold_the_same_network(ask: Ask) -> None:
    for model, run in (("lstm.pt2", "a"), ("lstm.onnx", "b")):
        assert (
            ask(
                "radius",
                "-m",
                model,
                "--trust",
                "-d",
                "data.npz",
                "--methods",
                "certify",
                "--limit",
                "2",
                "-o",
                run,
            ).code
            == 0
        )
    first, second = ([r["lower"]["value"] for r in records(ask, run)] for run in "ab")
    np.testing.assert_allclose(first, second, rtol=1e-4)


def test_a_misclassified_input_has_radius_zero_and_is_no_error(ask: Ask) -> None:
    said = ask("radius", "-m", "lstm.onnx", "-d", "wrong.npz", "-o", "run", "--limit", "2", *QUICK)
    assert said.code == 0
    wrong, right = records(ask)
    assert wrong["lower"]["value"] == wrong["upper"]["value"] == 0
    assert wrong["status"] == "closed"
    assert "the network says" in wrong["note"]
    assert right["upper"]["value"] > 0
    assert "network says" in " ".join(said.out.split())


def test_a_factory_of_the_working_folder_with_data_from_a_function(ask: Ask) -> None:
    said = ask("radius", "-m", "cli_own_code:linear", "-d", "cli_own_code:inputs", "-o", "run", *QUICK)
    assert said.code == 0, said.err
    assert said.err == ""  # that the module is in training mode is a note, not a warning with a path
    assert "note: was in training mode" in said.out
    assert "ant" in said.out  # names of classes, not numbers


def test_a_black_box_is_asked_without_gradients(ask: Ask) -> None:
    said = ask(
        "radius",
        "-m",
        "cli_own_code:black_box",
        "-d",
        "cli_own_code:inputs",
        "-o",
        "run",
        "--domain=0,1",
        "--limit",
        "1",
    )
    assert said.code == 0, said.err
    assert "nothing can be proved" in said.out
    assert records(ask)[0]["upper"]["method"] in ("Corners", "Mesh")


def test_text_in_words_out(ask: Ask) -> None:
    arguments = ("radius", "-m", "reader.onnx", "--vocabulary", "words.txt", "-d", "text.tsv", "-o", "run")
    said = ask(*arguments, "--substitutes", "substitutes.json")
    assert said.code == 0, said.err
    assert [float(r["lower"]["value"]) for r in records(ask)] == [
        math.inf
    ] * 3  # no word of the sets changes the class
    assert "no change that is allowed breaks it" in records(ask)[0]["note"]
    assert "3 of 3 cannot be broken" in said.out
    with Store.open("run") as store:
        assert [i.name for i in store.inputs()] == ["the film was good", "The film was awful", "good film"]
        assert store.inputs()[2].tokens == (4, 2)
        assert (store.question.model.vocabulary or ())[4] == "good"
    assert ask("report", "run").code == 0
    assert "awful" in Path("run/report.html").read_text()


def test_sentences_word_by_word(ask: Ask) -> None:
    arguments = (
        "radius",
        "-m",
        "reader.onnx",
        "--vocabulary",
        "words.txt",
        "-d",
        "text.tsv",
        "-o",
        "run",
        "--norm",
        "2",
    )
    said = ask(*arguments, "--frames", "each", "--limit", "2", *QUICK)
    assert said.code == 0, said.err
    found = records(ask)
    assert [(r["input"], r["frame"]) for r in found] == [(i, k) for i in range(2) for k in range(4)]
    weakest = sorted(range(4), key=lambda k: float(found[k]["upper"]["value"]))[:3]
    words = ", ".join(("the", "film", "was", "good")[k] for k in weakest)
    assert f"weakest of 4 words: {words}" in " ".join(said.out.replace("│", " ").split())


def test_replaced_words_place_by_place(ask: Ask) -> None:
    """Sets by place: one list for each text, with one for each of its words."""
    arguments = ("radius", "-m", "reader.onnx", "--vocabulary", "words.txt", "-d", "text.tsv")
    every = json.dumps([[list(WORDS)] * 4, [list(WORDS)] * 4, [[], ["awful", "nonsense"]]])
    Path("places.json").write_text(every)
    assert (
        ask(
            *arguments,
            "--substitutes",
            "places.json",
            "-o",
            "run",
            "--frames",
            "each",
            "--methods",
            "enumerate",
        ).code
        == 0
    )
    radii = {(r["input"], r["frame"]): float(r["upper"]["value"]) for r in records(ask)}
    assert set(radii.values()) <= {0, math.inf}
    assert radii[2, 0] == math.inf
    assert (
        ask(
            *arguments,
            "--substitutes",
            "places.json",
            "-o",
            "together",
            "--limit",
            "2",
            "--methods",
            "enumerate",
        ).code
        == 0
    )
    for r in records(ask, "together"):
        flips = any(radii[r["input"], k] == 0 for k in range(4))
        assert (float(r["upper"]["value"]) == 0) == flips
    assert ask("resume", "together", "--trust").code == 0
    Path("places.json").write_text(json.dumps([[[]] * 4] * 2))
    said = ask(*arguments, "--substitutes", "places.json", "-o", "other")
    assert said.code == 2
    assert "substitutes for 2 sentences, but there are 3" in said.err


def test_frames_by_their_scale(ask: Ask) -> None:
    arguments = (
        "radius",
        "-m",
        "lstm.onnx",
        "-d",
        "data.npz",
        "--limit",
        "2",
        "--methods",
        "certify",
        "--frames",
    )
    for name, options in (
        ("all", ("all",)),
        ("half", ("all", "--shares", "0.5,0.5,0.5")),
        ("still", ("each", "--shares", "1,0,0")),
    ):
        said = ask(*arguments, *options, "-o", name)
        assert said.code == 0, said.err
    whole, half = ([r["lower"]["value"] for r in records(ask, run)] for run in ("all", "half"))
    np.testing.assert_allclose(half, [2 * lower for lower in whole], rtol=0.02)
    assert [float(r["lower"]["value"]) == math.inf for r in records(ask, "still")] == [False, True, True] * 2
    assert "weakest of 3 frames: 0 " in " ".join(said.out.replace("│", " ").split())
    assert ask("resume", "still", "--trust").code == 0
    assert ask("report", "still").code == 0
    with Store.open("still") as store:
        assert store.question.asked.shares == "1,0,0"


def test_what_cannot_move_cannot_break(ask: Ask) -> None:
    said = ask(
        "radius",
        "-m",
        "lstm.onnx",
        "-d",
        "data.npz",
        "--limit",
        "2",
        "--frames",
        "all",
        "--shares",
        "0,0,0",
        "-o",
        "run",
    )
    assert said.code == 0, said.err
    assert said.out.count("∞ proved") == 2
    assert "nothing may change here" in said.out
    assert "2 of 2 hold because nothing may change" in said.out
    assert {r["status"] for r in records(ask)} == {"closed"}
    assert ask("report", "run").code == 0
    assert "nothing may change here" in Path("run/report.html").read_text()


def test_frames(ask: Ask) -> None:
    """All frames together are weaker than each one alone; those that may not move do not."""
    arguments = ("radius", "-m", "lstm.onnx", "-d", "data.npz", "--limit", "2", "--methods", "certify")
    for frames in ("all", "each", "0,2"):
        assert ask(*arguments, "--frames", frames, "-o", f"run-{frames}").code == 0
    everything = [r["lower"]["value"] for r in records(ask, "run-all")]
    some = [r["lower"]["value"] for r in records(ask, "run-0,2")]
    alone = np.array([r["lower"]["value"] for r in records(ask, "run-each")]).reshape(2, 3)
    assert (np.array(everything) <= np.array(some) * 1.001).all()
    assert (np.array(some) <= alone[:, [0, 2]].min(1) * 1.001).all()


def test_targets_are_harder_to_reach_than_any_class(ask: Ask) -> None:
    with np.load("data.npz") as archive:
        labels = archive["y"][:2]
    others = [(label + 1) % 3 for label in labels]
    arguments = (
        "radius",
        "-m",
        "lstm.onnx",
        "-d",
        "data.npz",
        "--limit",
        "2",
        "--methods",
        "certify",
        "--norm",
        "2",
    )
    assert ask(*arguments, "-o", "any").code == 0
    for run, targets in (("run", ",".join(map(str, others))), ("second", "runner-up")):
        assert ask(*arguments, "-o", run, "--targets", targets).code == 0
        for free, aimed in zip(records(ask, "any"), records(ask, run), strict=True):
            assert free["lower"]["value"] <= aimed["lower"]["value"] * 1.001


def test_every_tier_can_be_asked_for() -> None:
    assert [one_of(tier, "tier", Tier) for tier in get_args(Tier)] == list(get_args(Tier))


def test_the_search_tier_proves_nothing(ask: Ask) -> None:
    assert (
        ask(
            "radius", "-m", "lstm.onnx", "-d", "data.npz", "--limit", "1", "--tier", "search", "-o", "run"
        ).code
        == 0
    )
    (found,) = records(ask)
    assert found["lower"]["value"] == 0
    assert found["upper"]["kind"] == "witnessed"


def test_a_budget_of_no_time_still_answers(ask: Ask) -> None:
    assert ask("radius", "-m", "lstm.onnx", "-d", "data.npz", "--seconds", "0", "-o", "run").code == 0
    assert {r["status"] for r in records(ask)} == {"stopped"}


def test_bytes_are_scaled_into_the_domain(ask: Ask) -> None:
    with np.load("data.npz") as archive:
        np.savez("bytes.npz", x=(archive["x"] * 255).astype(np.uint8), y=archive["y"])
    said = ask(
        "radius",
        "-m",
        "lstm.onnx",
        "-d",
        "bytes.npz",
        "--scale",
        "255",
        "--domain",
        "0,1",
        "--limit",
        "1",
        "-o",
        "run",
        *QUICK,
    )
    assert said.code == 0, said.err
    with Store.open("run") as store, np.load("bytes.npz") as archive:
        np.testing.assert_array_equal(store.inputs()[0].x, (archive["x"][0] / 255).astype(np.float32))
        assert store.question.model.domain == "[0, 1]"


def test_data_for_a_double_network_are_not_rounded(ask: Ask) -> None:
    Path("cli_double.py").write_text(
        "from cli_own_code import linear\n\ndef double():\n    return linear().double()\n"
    )
    x = np.random.default_rng(0).random((1, 3, 2))
    np.savez("fine.npz", x=x, y=[0])
    assert ask("radius", "-m", "cli_double:double", "-d", "fine.npz", "-o", "run", *QUICK).code == 0
    with Store.open("run") as store:
        np.testing.assert_array_equal(store.inputs()[0].x, x[0])


def test_a_network_that_ships_in_a_wheel(ask: Ask) -> None:
    """silero-vad: one recording without a batch axis, the state of its LSTM as constants, and the new state beside the answer."""
    found = importlib.util.find_spec("silero_vad")
    if found is None or not found.submodule_search_locations:
        pytest.skip("silero_vad is not installed: pip install --no-deps silero-vad")
    model = Path(found.submodule_search_locations[0]) / "data" / "silero_vad_16k_sequence.onnx"
    bare = ask("inspect", model)
    assert bare.code == 2
    assert "3 outputs, speech_probs (any), hn" in bare.err
    assert "--output NAME" in bare.err
    chosen = ask("inspect", model, "--output", "speech_probs")
    assert chosen.code == 2
    assert "--constant name=value" in chosen.err
    options = (
        "--output",
        "speech_probs",
        "--constant",
        "h=0",
        "--constant",
        "c=0",
        "--unbatched",
        "--domain=-1,1",
    )
    # By default half a minute is spent on measuring a proof, which has no pass that ends earlier.
    seen = ask("inspect", model, *options, *(() if FULL else ("--seconds", "1")))
    assert seen.code == 0, seen.err
    assert "any x 576" in seen.out
    sound = 0.1 * torch.randn(1, 4, 576).clamp(-9, 9)
    np.savez("sound.npz", x=sound.numpy(), y=[0])
    said = ask("radius", "-m", model, "-d", "sound.npz", *options, "--queries", "1", *QUICK, "-o", "run")
    assert said.code == 0, said.err


def test_export(ask: Ask) -> None:
    import pyarrow.parquet

    assert ask("radius", "-m", "lstm.onnx", "-d", "data.npz", "--limit", "2", "-o", "run", *QUICK).code == 0
    for ending in ("json", "csv", "parquet", "npz"):
        assert ask("export", "run", f"out.{ending}").out == f"written: out.{ending}\n"
    ends = [r["upper"]["value"] for r in json.loads(Path("out.json").read_text())["records"]]
    with Path("out.csv").open() as stream:
        assert [float(row["upper"]) for row in csv.DictReader(stream)] == ends
    assert pyarrow.parquet.read_table("out.parquet")["upper"].to_pylist() == ends
    with np.load("out.npz") as witnesses, np.load("data.npz") as data:
        for i, end in enumerate(ends):
            found = np.abs(witnesses[str(Key(i))].astype(np.float64) - data["x"][i]).max()
            assert found <= end * (1 + 1e-6)


def test_the_page_goes_where_it_is_told(ask: Ask) -> None:
    assert ask("radius", "-m", "lstm.onnx", "-d", "data.npz", "--limit", "1", "-o", "run", *QUICK).code == 0
    assert ask("report", "run", "--out", "page [1].html").out == "report: page [1].html\n"
    assert Path("page [1].html").exists()


def test_names_with_brackets_and_spaces_are_shown_as_they_are(ask: Ask) -> None:
    said = ask("radius", "-m", "lstm.onnx", "-d", "data.npz", "--limit", "1", "-o", "my [bold]run", *QUICK)
    assert said.code == 0
    assert "run: my [bold]run\n" in said.out
    assert "next: holdfast report 'my [bold]run'\n" in said.out  # can be pasted into a shell


def test_the_mean_bracket_compares_like_with_like() -> None:
    """An input without a witness must not lift the mean of the lower ends above that of the upper ends."""

    def record(lower: float, upper: float) -> Record:
        ends = Bound(lower, Evidence("proved", "x")), trivial_bound(upper)
        return Record(Key(0), Bracket(*ends), "finished", 0.0, 0, ())

    assert mean_bracket([record(1, 2), record(100, float("inf"))]) == "mean [1, 2]"
    assert mean_bracket([record(1, float("inf"))]) == ""


def test_a_part_of_the_answer_is_measured_by_its_name(ask: Ask) -> None:
    asked = (
        "radius",
        "--data",
        "data.npz",
        "--limit",
        "2",
        "--domain",
        "0,1",
        "--queries",
        "50",
        "--executor",
        "here",
    )
    assert "--output" in ask(*asked, "--model", "cli_own_code:named", "--out", "nothing").err
    assert ask(*asked, "--model", "cli_own_code:named", "--output", "scores", "--out", "part").code == 0
    assert ask(*asked, "--model", "cli_own_code:linear", "--out", "whole").code == 0
    with Store.read("part") as part, Store.read("whole") as whole:
        ends = [
            [end.value for r in store.stream() for end in (r.bracket.lower, r.bracket.upper)]
            for store in (part, whole)
        ]
        assert ends[0] == pytest.approx(ends[1])
        assert part.question.model.prepared["output"] == "scores"
    assert (
        "--output has no effect here"
        in ask(*asked, "--model", "cli_own_code:black_box", "--output", "scores", "--out", "box").err
    )


def test_clever_rnn_is_an_estimate_with_its_radius_of_sampling(ask: Ask) -> None:
    seen = " ".join(ask("inspect", "lstm.onnx", "--domain", "0,1").out.split())
    assert "clever-rnn" in seen
    assert "epsilon_0" in seen
    said = ask(
        "radius", "-m", "lstm.onnx", "-d", "data.npz", "--norm", "2", "--methods", "clever-rnn", "-o", "run"
    )
    assert said.code == 0, said.err
    assert ask("export", "run", "found.json").code == 0
    for record in json.loads(Path("found.json").read_text())["records"]:
        assert record["lower"]["value"] == 0
        if record["status"] == "closed":  # misclassified
            continue
        assert record["upper"]["value"] in (None, "inf", math.inf)
        (estimate,) = record["estimates"]
        assert estimate["kind"] == "estimated"
        assert estimate["method"] == "CleverRNN"
        assert "epsilon_0 = 0.1 of the reach" in estimate["assumptions"][0]
