"""One vocabulary: a word means the same in every public function and in every command, and a meaning has one word.

A new argument or option that uses a known word must take what that word takes. A new word is a new line here, and only if no line says
the same already.
"""

import inspect
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

import pytest
import typer.main

import holdfast as hf
from holdfast.cli import app


@dataclass(frozen=True)
class Word:
    """takes: what an argument of this name may be given in Python, empty where only commands have it. shown: how --help shows what
    the option takes, `flag` for one that takes nothing, empty where only Python has it."""

    meaning: str
    takes: str = ""
    shown: str = ""


WORDS = {
    # what is asked, of what
    "net": Word(
        "the model: a network, or what one is read from; of a query of several, by name",
        "Network Module str Path EstimatorLike Mapping",
        "NAME=FILE",
    ),
    "model": Word("a model on disk or in a module, as commands read it", "str None", "MODEL"),
    "x": Word("the inputs; to train on, also batches of them", "Tensor ndarray Sequence Iterable Mapping None"),
    "y": Word("the class of each input", "Tensor ndarray Sequence int str None"),
    "data": Word("inputs, with classes where they are needed, as people have them", "object", "DATA"),
    "train": Word("training data, for what is usual", "Tensor None", "DATA"),
    "lengths": Word("how long each padded input is", "Sequence None"),
    "limit": Word("only the first so many inputs", "int None", "COUNT"),
    "input": Word("one input, by its place in the data", shown="NUMBER"),
    "scale": Word("the data are divided by this; of an experiment: its size", "float None", "NUMBER SCALE"),
    "list": Word("show what there is", shown="flag"),
    "table": Word("a table of a paper", shown="NUMBER"),
    "figure": Word("a figure of a paper", shown="NUMBER"),
    "item": Word("an experiment of a paper", shown="NAME"),
    "text_column": Word("the column of a table that holds texts", "str None", "NAME"),
    "label_column": Word("the column of a table that holds labels", "str None", "NAME"),
    "frozen": Word("the columns of a table that do not change", shown="NAMES"),
    "labels": Word("labels in a file of their own", "str Path None", "FILE"),
    "only_correct": Word("without inputs that the network gets wrong", "bool", "flag"),
    "spec": Word("a VNN-LIB question", "Spec str Path", "FILE"),
    "problems": Word("questions, already put", "Iterable"),
    "records": Word("answers that are known", "Iterable"),
    # where inputs may move
    "norm": Word("how distances are measured", "float str", "P"),
    "radius": Word("how far inputs may move", "float Tensor None", "NUMBER"),
    "level": Word("a radius in decibels relative to the peak", "float"),
    "region": Word("where inputs may move, made by hand", "Region None"),
    "box": Word("lower and upper ends of inputs", "Box tuple", "BOX"),
    "patch": Word("the part of an input that moves", "Tensor None", "TOP,LEFT,SIZE"),
    "frames": Word("which frames move", "name int Sequence Tensor None", "WHICH"),
    "shares": Word("a frame or feature moves by the radius times its number", "Sequence Tensor None", "NUMBERS"),
    "drift": Word("one offset a feature for all frames", "bool", "flag"),
    "substitutes": Word("what words may become", "Mapping Sequence None", "FILE"),
    "edits": Word("which edits of a text count", "Edits None", "EDITS"),
    "unit": Word("what counts as one change", "name None", "WHAT"),
    "free": Word("the units that may change", "Tensor Sequence None", "FILE"),
    "values": Word("what a changed number may be", "Sequence Tensor None", "NUMBERS"),
    "levels": Word("how many values are tried where none are named", "int", "COUNT"),
    "t": Word("how many units a set of a grid may have", shown="COUNT"),
    "rule": Word("what the sensitivity of a set measures", shown="RULE"),
    "changes": Word("at most so many changed units", "int None", "COUNT"),
    "domain": Word("lowest and highest value of an input", "tuple Domain None", "LOW,HIGH"),
    # what must hold
    "property": Word("the score that must stay positive", "Property Rule name Callable None", "WHAT"),
    "targets": Word("the class that counts, or one for each input", "name Tensor Sequence int str None", "CLASSES"),
    "margin": Word("by how much a score must be above zero", "float None", "NUMBER"),
    "epsilon": Word("formerly: margin", "float None"),
    "toward": Word("the distribution that uncertainty is measured from", "Tensor None", "NUMBERS"),
    "softmax": Word("whether probabilities are meant, not plain outputs", "bool", "flag"),
    "within": Word("how far outputs may go from the forecast, or from another network's", "float None", "WIDTH"),
    "other": Word("the network that net is compared with", "Network Module str Path EstimatorLike Mapping", "OTHER"),
    "same_class": Word("whether both networks must choose the same class", "bool", "flag"),
    "outputs": Word("which outputs, by number or by the level of a quantile", "int Sequence None", "NUMBERS"),
    "quantiles": Word("the levels of quantiles that a network forecasts", shown="NUMBERS"),
    "rows": Word("combinations of outputs", "Tensor None"),
    "offset": Word("what is added to combinations of outputs", "Tensor None"),
    "criterion": Word("what tests should cover", "name", "WHAT"),
    "layers": Word("which layers, by name", "Sequence None", "NAMES"),
    "per": Word("what is one neuron", "name", "WHAT"),
    "threshold": Word("above this a neuron fires, or an output says yes", "float", "NUMBER"),
    "sections": Word("parts of a neuron's range", "int", "COUNT"),
    # how it is answered
    "tier": Word("how hard to prove", "name", "TIER"),
    "mode": Word("which of several kinds of answer is wanted", "name", "MODE"),
    "arithmetic": Word("which arithmetic proofs speak of", "name", "KIND"),
    "methods": Word("the algorithms, instead of those chosen", "Sequence Callable str None", "NAMES"),
    "judges": Word("the same network on other machinery", "Sequence"),
    "sigma": Word("the width of the noise that smooths", "float", "NUMBER"),
    "samples": Word("draws for one number", "int", "COUNT"),
    "choosing": Word("draws that choose the class", "int", "COUNT"),
    "confidence": Word("of an interval from draws", "float", "NUMBER SHARE"),
    "tests": Word("at most so many tests", "int None", "COUNT"),
    "tries": Word("inputs tried for one item", "int"),
    "beam": Word("units tried alone in each step", "int"),
    "batch": Word("how much is worked on at once", "int None", "COUNT"),
    "seed": Word("decides every draw", "int", "NUMBER"),
    # how a network is trained
    "recipe": Word("how a network is trained to hold", "str Recipe", "NAME"),
    "begin": Word("the weights that training begins with", "name", "HOW"),
    "freeze": Word("layers whose weights stay", "Sequence", "LAYERS"),
    "validation": Word("what is held back to choose a checkpoint: a share, or inputs and classes", "float tuple"),
    "held": Word("the share of the data that is held back", shown="SHARE"),
    "test": Word("inputs and classes that nothing was chosen by", "tuple None", "DATA"),
    "measured": Word("about how many held-out inputs are asked about", "int"),
    "count": Word("how many held-out inputs are asked about", shown="COUNT"),
    "epochs": Word("how often all inputs are seen", "int None", "COUNT"),
    # when to stop
    "stop": Word("when to stop: seconds, queries, gap; a number is seconds", "Stop float None"),
    "seconds": Word("stop after so many seconds", "float None", "NUMBER"),
    "queries": Word("network evaluations for each input that may be spent", "int", "COUNT"),
    "gap": Word("stop when the ends are so close", shown="NUMBER"),
    "tolerance": Word("how exactly an end is asked for", "float", "NUMBER"),
    # where it goes
    "out": Word("where the answer goes", shown="FOLDER FILE"),
    "store": Word("keeps records as they come", "Sink None"),
    "progress": Word("shows how far it has come, or is told", "Callable bool None"),
    "executor": Word("where questions are answered", "Executor None", "WHERE"),
    "shard": Word("which of how many parts of the inputs", shown="K/N"),
    "seconds_each": Word("seconds for each input", shown="NUMBER"),
    "memory": Word("how much a process of the run may hold", shown="SIZE"),
    "pictures": Word("at most so many pictures", shown="COUNT"),
    "saliency": Word("keep a map of what matters too", shown="flag"),
    "names": Word("names and units of inputs and outputs", "str Path None", "FILE"),
    "about": Word("what people state about a system: requirements, assumptions, who signs", shown="FILE"),
    "certificates": Word("what is proved or met goes into files for the checker too", shown="flag"),
    "report": Word("the page that is written of the results", "str Path None"),
    "folder": Word("a folder on disk", "str Path None"),
    "question": Word("what a run remembers of what it was asked", "Question None"),
    # how a model is read
    "module": Word("a torch module", "Module"),
    "file": Word("a model's file", "str Path None"),
    "function": Word("any function of arrays", "Callable"),
    "estimator": Word("a fitted estimator", "Any"),
    "columns": Word("what the columns of a table are", "Columns None", "FILE"),
    "trust": Word("open a file that can run code", "bool", "flag"),
    "mean": Word("taken off the inputs first", "float Sequence Tensor None", "NUMBERS"),
    "std": Word("then they are divided by this", "float Sequence Tensor None", "NUMBERS"),
    "input_scaler": Word("a fitted scaler instead of both", "Any", "MODULE:FUNCTION"),
    "output_mean": Word("added to the outputs last", "float Sequence Tensor None", "NUMBERS"),
    "output_std": Word("the outputs are multiplied by this before", "float Sequence Tensor None", "NUMBERS"),
    "output_scaler": Word("a fitted scaler of the targets instead of both", "Any", "MODULE:FUNCTION"),
    "shape": Word("of one input", "Sequence None", "SIZES"),
    "time_first": Word("the model wants time before the batch", "bool", "flag"),
    "pool": Word("how answers once a frame become one", "name None", "HOW"),
    "tokens": Word("the model reads token ids", "bool"),
    "vocabulary": Word("the words of a token model", "Sequence None", "FILE"),
    "classes": Word("the names of the outputs", "Sequence None", "NAMES"),
    "tokenizer": Word("how text becomes tokens", "Tokenizer str Path Callable None", "HOW"),
    "device": Word("where to compute", "str device", "WHERE"),
    "name": Word("what the network is called", "str None"),
    "output": Word("which part of a model's answer is measured, by its name", "str None", "NAME"),
    "black_box": Word("run an ONNX file as it is, without proofs", "bool", "flag"),
    "batched": Word("whether an ONNX file has a batch axis", "bool"),
    "unbatched": Word("the ONNX file has no batch axis", shown="flag"),
    "inputs": Word("the inputs that are perturbed together, by name", "Mapping Sequence None", "NAMES"),
    "constants": Word("other inputs of the model", "Mapping None"),
    "constant": Word("one other input of the model; may be repeated", shown="NAME=VALUE"),
    "fingerprint": Word("by what a function is known again", "str Sequence None", "FILE"),
    # monitors
    "sequences": Word("many sequences", "Sequence"),
    "sequence": Word("one sequence", "Any"),
    "mutation": Word("what may stand in an element's place", "Mutation", "WHAT"),
    "answer": Word("what of an answer must stay", "Output None", "WHAT"),
    "k": Word("which answer must stay, so many elements later", "int name", "STEPS"),
    "unknown": Word("what happens to words the model does not know", "name None", "POLICY"),
    "unk": Word("the token for unknown words", "int None"),
    "max_length": Word("the longest sequence that is taken", "int", "COUNT"),
    "max_body": Word("the largest request that is taken", shown="BYTES"),
    "host": Word("where a service listens", shown="ADDRESS"),
    "port": Word("at which port", shown="NUMBER"),
    "workers": Word("processes that work side by side", shown="COUNT"),
    "token_file": Word("what clients of a service must show", shown="FILE"),
    "open_metrics": Word("a service's metrics for everybody", shown="flag"),
    "certificate": Word("the certificate of a service", shown="FILE"),
    "certificate_key": Word("the key of a certificate", shown="FILE"),
    "max_depth": Word("how deep a request's lists may stand in one another", shown="COUNT"),
    "max_waiting": Word("requests that may wait", shown="COUNT"),
    "max_streams": Word("streams open at once", shown="COUNT"),
    "max_connections_each": Word("of them from one address", shown="COUNT"),
    "max_connections": Word("connections open at once", shown="COUNT"),
    "rate": Word("requests a second from one address", shown="NUMBER"),
    "burst": Word("requests at once from one address", shown="COUNT"),
    "reading": Word("seconds for a request to come in", shown="SECONDS"),
    "writing": Word("seconds for an answer to be taken", shown="SECONDS"),
    "idle": Word("seconds without a request", shown="SECONDS"),
    "lingering": Word("seconds in which a service says that it ends", shown="SECONDS"),
    "closing": Word("seconds for open requests to end", shown="SECONDS"),
    "prism": Word("where PRISM's files go", shown="FOLDER"),
    "theta": Word("the error left in an abstract state", "float None", "NUMBER"),
    "omega": Word("dimensions that are kept of a state", "int None", "COUNT"),
    # controllers in a loop
    "controller": Word("the network that steers a plant", shown="MODEL"),
    "plant": Word("what a controller steers, as a function", shown="FUNCTION"),
    "period": Word("how long a control is held", shown="TIME"),
    "steps": Word("the number of periods", shown="COUNT"),
    "start": Word("the initial states", shown="CONDITION"),
    "stay": Word("what all states must satisfy", shown="CONDITION"),
    "avoid": Word("what no state may satisfy", shown="CONDITION"),
    "reach": Word("what some state must satisfy", shown="CONDITION"),
    "from": Word("the time from which a condition counts", shown="TIME"),
    "until": Word("the time up to which a condition counts", shown="TIME"),
    "by": Word("the time up to which a state must be reached", shown="TIME"),
    "controller_inputs": Word("what a controller reads of the states, as a function", shown="FUNCTION"),
    "states": Word("the names of the states of a plant", shown="NAMES"),
    "units": Word("the units of the states of a plant", shown="NAMES"),
    "discrete": Word("the plant returns next states, not derivatives", shown="flag"),
    "disturbance": Word("the largest values that are added to derivatives", shown="NUMBERS"),
    "order": Word("of a Taylor expansion in time", shown="COUNT"),
    "max_boxes": Word("at most so many boxes of initial states", shown="COUNT"),
    "width_ratio": Word("how wide a tube may be beside simulations", shown="NUMBER"),
    # runs that exist
    "at": Word("the radius or radii looked at; of a loop, the time", "float None", shown="RADIUS RADII TIME"),
    "sort": Word("the order of the rows of a table", shown="ORDER"),
    "part": Word("which part of a question that has several", shown="NAME"),
    "against": Word("a run to be no worse than", shown="BASELINE"),
    "slack": Word("worse than the baseline by so much is let through", shown="SHARE"),
    "min_certified": Word("at least this share is certified", "float", "SHARE"),
    "max_broken": Word("at most this share is broken", "float None", "SHARE"),
    "max_unknown": Word("at most this share is unknown", "float None", "SHARE"),
    "min_accuracy": Word("at least this share is right", shown="SHARE"),
    "key": Word("known answers, to compare with; of a signature, the private key", shown="FILE"),
    "public_key": Word("by which a signature is checked", shown="FILE"),
    "signer": Word("who signs in place of a key", shown="FUNCTION"),
    "unpack": Word("where the files of a bundle go", shown="FOLDER"),
    "with_model": Word("the model goes with its run", shown="flag"),
    "page": Word("a page of one's own", shown="FILE"),
    "proofs": Word("certificates of a run", shown="FOLDER"),
    "gate": Word("what a gate said", shown="FILE"),
    "sample": Word("so many records, drawn at random", "int None", "COUNT"),
    "all": Word("every record", shown="flag"),
    "with": Word("another file of a run, where it lies now", shown="OPTION=FILE"),
    "files": Word("other files of a run, by their options, where they lie now", "Mapping None"),
    "run": Word("the folder of a run, or its store", "str Path Store"),
    "prefix": Word("how the names in another tool begin", "str"),
    "client": Word("the other tool, or what stands in for it", "Any"),
    "vnnlib": Word("write the question as VNN-LIB files", shown="flag"),
    "column": Word("the column that alone changes", "str", "NAME"),
    "per_row": Word("how many answers for each row at most", "int"),
    "junit": Word("a decision as JUnit XML", shown="FILE"),
    "markdown": Word("a decision as Markdown", shown="FILE"),
    "json": Word("a decision as JSON", shown="FILE"),
}  # fmt: skip

INSTEAD = {  # words that were used once, or suggest themselves, and what stands here for them
    "target": "targets", "frame_scale": "shares", "method": "methods", "network": "net",
    "label": "y", "eps": "radius", "budget": "stop", "timeout": "stop", "spec_file": "spec", "path": "file",
    "length": "max_length", "body": "max_body",
}  # fmt: skip


def functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """What people call: the functions of `holdfast`, and the ways to make networks, monitors and runs."""
    for name in hf.__all__:
        thing = getattr(hf, name)
        if inspect.isfunction(thing):
            yield name, thing
    for kind in (hf.Network, hf.Monitor, hf.Store):
        for name, member in vars(kind).items():
            if isinstance(member, classmethod) and not name.startswith("_"):
                yield f"{kind.__name__}.{name}", member.__func__
    yield "Monitor.score", hf.Monitor.score
    yield "Monitor.score_all", hf.Monitor.score_all
    yield "Monitor.save", hf.Monitor.save


def taken(annotation: Any) -> set[str]:
    """The kinds of thing that an annotation lets in: `int | Sequence[int] | None` -> int, Sequence, None; a Literal is a name."""
    if isinstance(annotation, str):
        return {annotation.split("[")[0].strip()}
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return set().union(*(taken(part) for part in get_args(annotation)))
    if origin is Literal:
        return {"name"}
    if annotation in (None, type(None)):
        return {"None"}
    return {getattr(origin or annotation, "__name__", str(origin or annotation))}


def hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except NameError:  # an import for types only
        return {name: p.annotation for name, p in inspect.signature(function).parameters.items()}


def wrong_argument(word: str, annotation: Any) -> str | None:
    known = WORDS.get(word)
    if known is None or not known.takes:
        return f"the word {word} is not in the table of arguments" + (
            f"; say {INSTEAD[word]}" if word in INSTEAD else ""
        )
    odd = taken(annotation) - set(known.takes.split())
    return (
        f"{word} means '{known.meaning}' and takes {known.takes}, not {', '.join(sorted(odd))}"
        if odd
        else None
    )


@pytest.mark.parametrize(("name", "function"), list(functions()), ids=[name for name, _ in functions()])
def test_arguments_use_the_words_in_their_meaning(name: str, function: Callable[..., Any]) -> None:
    annotated = hints(function)
    for word, parameter in inspect.signature(function).parameters.items():
        if word not in ("self", "cls") and parameter.kind is not parameter.VAR_KEYWORD:
            problem = wrong_argument(word, annotated[word])
            assert problem is None, f"{name}: {problem}"


def options() -> Iterator[tuple[str, str, str]]:
    """(command, word, what it takes) for every option of every command."""

    def commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
        if hasattr(command, "commands"):
            for below, one in command.commands.items():
                yield from commands(one, f"{name} {below}".strip())
        else:
            yield name, command

    for name, command in commands(typer.main.get_command(app), ""):
        for parameter in command.params:
            if parameter.opts[0].startswith("--") and parameter.opts[0] not in ("--help", "--debug"):
                yield (
                    name,
                    parameter.opts[0][2:].removeprefix("no-").replace("-", "_"),
                    parameter.metavar or "flag",
                )


def wrong_option(word: str, shown: str) -> str | None:
    known = WORDS.get(word)
    if known is None or not known.shown:
        return f"--{word.replace('_', '-')} is not in the table of options" + (
            f"; say {INSTEAD[word]}" if word in INSTEAD else ""
        )
    fits = shown in known.shown.split()
    return (
        None
        if fits
        else f"--{word.replace('_', '-')} means '{known.meaning}' and takes {known.shown}, not {shown}"
    )


@pytest.mark.parametrize(("command", "word", "shown"), list(options()))
def test_options_use_the_words_in_their_meaning(command: str, word: str, shown: str) -> None:
    problem = wrong_option(word, shown)
    assert problem is None, f"holdfast {command}: {problem}"


def test_no_two_words_mean_the_same() -> None:
    meanings = [word.meaning for word in WORDS.values()]
    assert len(set(meanings)) == len(meanings)
    assert not INSTEAD.keys() & WORDS.keys()


def test_every_word_is_used() -> None:
    """A word that nothing uses is no vocabulary."""
    said = {word for _, function in functions() for word in inspect.signature(function).parameters}
    said |= {word for _, word, _ in options()}
    assert not WORDS.keys() - said


@pytest.mark.parametrize(
    ("word", "annotation"),
    [
        ("target", int),
        ("units", list[float]),
        ("outputs", bool),
        ("scale", bool),
        ("seed", float),
        ("seed", int | None),
        ("method", str),
    ],
)
def test_a_word_outside_the_table_or_in_another_meaning_is_seen(word: str, annotation: Any) -> None:
    assert wrong_argument(word, annotation) is not None


@pytest.mark.parametrize(
    ("word", "shown"), [("target", "CLASSES"), ("outputs", "flag"), ("input", "DATA"), ("timeout", "NUMBER")]
)
def test_an_option_outside_the_table_or_in_another_meaning_is_seen(word: str, shown: str) -> None:
    assert wrong_option(word, shown) is not None
