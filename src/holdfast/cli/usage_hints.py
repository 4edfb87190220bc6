"""What somebody probably means who gives an option, a command or a word that holdfast does not have."""

import difflib
from collections.abc import Sequence
from typing import Any

CLOSE = 0.75  # Similarity of difflib from which a misspelled option is recognised; chosen by hand.
SEARCHED = "radius searches for it. A given radius: --at 0.05 here, or holdfast worst --radius 0.05."
# Options of other tools -> the option that is meant, where the command has it, or a sentence.
OPTIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("--eps", "--epsilon", "--delta", "--max-radius"), ("--radius",)),
    **dict.fromkeys(("--timeout", "--time", "--time-limit", "--budget", "--max-time"), ("--seconds",)),
    **dict.fromkeys(("--p", "--ord", "--lp", "--distance"), ("--norm",)),
    **dict.fromkeys(("--input", "--inputs", "--dataset", "--images", "--x"), ("--data",)),
    **dict.fromkeys(("--net", "--network", "--checkpoint", "--onnx"), ("--model",)),
    **dict.fromkeys(("--output-dir", "--outdir", "--dir", "--folder", "--save"), ("--out",)),
    **dict.fromkeys(("--n", "--num", "--samples", "--count", "--max-inputs"), ("--limit",)),
    **dict.fromkeys(("--attack", "--attacks", "--method", "--verifier"), ("--methods",)),
    **dict.fromkeys(("--clip", "--bounds", "--range"), ("--domain",)),
    **dict.fromkeys(("--input-shape", "--size"), ("--shape",)),
    **dict.fromkeys(("--tokens", "--vocab", "--words"), ("--vocabulary",)),
    **dict.fromkeys(("--workers", "--jobs", "--processes", "--threads"), ("--workers",)),
}
SENTENCES = {
    "--gpu": "Write --device cuda.",
    "--cuda": "Write --device cuda.",
    "--cpu": "Write --device cpu.",
    "--resume": "Write holdfast resume FOLDER.",
    "--batch-size": "Leave it out: batches are chosen by the memory that is free; --memory limits it.",
}
# Commands of other tools, and words for commands -> the command that is meant.
COMMANDS = {
    **dict.fromkeys(("run", "certify", "robustness", "attack", "evaluate", "eval", "test"), "radius"),
    **dict.fromkeys(("view", "open", "print"), "show"),
    **dict.fromkeys(("html", "plot", "page"), "report"),
    **dict.fromkeys(("diff",), "compare"),
    **dict.fromkeys(("train", "robustify"), "harden"),
    **dict.fromkeys(("continue", "restart"), "resume"),
    **dict.fromkeys(("info", "describe", "summary", "model"), "inspect"),
    **dict.fromkeys(("csv", "save", "dump"), "export"),
    **dict.fromkeys(("ci", "assert"), "gate"),
}


def hint_for_option(given: str, command: Any, context: Any) -> str:
    """What an unknown option probably means, as a sentence; empty if nothing is close."""
    parameters = [one for one in command.get_params(context) if not getattr(one, "hidden", False)]
    names = [name for one in parameters if one.param_type_name == "option" for name in one.opts]
    if given == "--model" and any(one.param_type_name == "argument" for one in parameters):
        return f"{command.name} takes the model without an option: {context.command_path} MODEL."
    meant = next((name for name in OPTIONS.get(given, ()) if name in names), None)
    if meant is not None:
        return f"It is called {meant} here."
    if given in ("--eps", "--epsilon", "--radius") and command.name == "radius":
        return SEARCHED
    if given in SENTENCES:
        return SENTENCES[given]
    near = difflib.get_close_matches(given, names, 2, CLOSE)
    return f"Did you mean {' or '.join(near)}?" if near else f"'{context.command_path} --help' lists them."


def hint_for_command(given: str, names: Sequence[str]) -> str:
    """Which command is meant by a word that is none, as a sentence."""
    meant = COMMANDS.get(given.lower())
    near = [meant] if meant in names else difflib.get_close_matches(given.lower(), names, 2)
    quoted = " or ".join(f"'{name}'" for name in near)
    return f"Did you mean {quoted}?" if near else "'holdfast --help' lists the commands."


def hint_for_words(words: Sequence[str], given: Sequence[str]) -> str:
    """What words that follow an option probably are; empty if that is not clear.

    Args:
        words: the ones without an option or argument that takes them.
        given: the whole command line.
    """
    place = given.index(words[0]) if words and words[0] in given else 0
    if place < 2:
        return ""
    value, option = given[place - 1], given[place - 2]
    if option.startswith("--") and not value.startswith("-"):
        return f"Several values of an option are one word: {option} {','.join([value, *words])}."
    return ""
