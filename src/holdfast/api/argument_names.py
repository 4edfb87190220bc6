"""Explain arguments that a public function does not have, by the name that other libraries use for them.

Python says only "unexpected keyword argument 'eps'". `explain_arguments` adds what the caller probably means and
what its name is here. The error stays a TypeError, as for every Python function.
"""

import difflib
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

CLOSE = 0.7  # Similarity of difflib from which a misspelled name is recognised; chosen by hand.
# What other libraries call an argument -> the names that it may have here; the first that the function has is
# meant.
SYNONYMS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("model", "network", "module", "classifier", "estimator"), ("net",)),
    **dict.fromkeys(("X", "inputs", "input", "images", "data", "samples_x"), ("x", "sequences")),
    **dict.fromkeys(("Y", "label", "labels", "target_class", "y_true"), ("y",)),
    **dict.fromkeys(("target", "targeted"), ("targets",)),
    **dict.fromkeys(("p", "ord", "lp", "lp_norm", "distance"), ("norm",)),
    **dict.fromkeys(("eps", "epsilon", "delta", "perturbation", "max_radius"), ("radius",)),
    **dict.fromkeys(("timeout", "time", "time_limit", "budget", "max_time", "limit"), ("seconds",)),
    **dict.fromkeys(("clip_values", "bounds", "value_range", "clip", "limits"), ("domain",)),
    **dict.fromkeys(("method", "attack", "attacks", "verifier"), ("methods",)),
    **dict.fromkeys(("random_state", "random_seed"), ("seed",)),
    **dict.fromkeys(("verbose", "callback", "show_progress", "quiet"), ("progress",)),
    **dict.fromkeys(("spec_file", "property_file", "vnnlib"), ("spec",)),
    **dict.fromkeys(("noise", "std"), ("sigma",)),
    **dict.fromkeys(("n_samples", "n"), ("samples",)),
    **dict.fromkeys(("n_epochs", "num_epochs", "iterations"), ("epochs",)),
    **dict.fromkeys(("synonyms", "replacements"), ("substitutes",)),
    **dict.fromkeys(("prop", "goal", "objective"), ("property",)),
    **dict.fromkeys(("mutations",), ("mutation",)),
}
# What a required argument looks like, said where it is missing.
EXAMPLES = {
    "net": "The model comes first: a torch module, the path of an .onnx file, or a hf.Network.",
    "x": "x holds the inputs, (batch, ...).",
    "region": "How far inputs may move: hf.Ball(x, 0.05, math.inf, (0, 1)), or hf.Box.between(lower, upper).",
    "property": "What must hold: hf.Robustness(torch.as_tensor(y)), or a name such as 'confidence'.",
    "spec": "The question is the path of a VNN-LIB file.",
    "box": "The inputs are a box: hf.Box.between(lower, upper).",
    "sigma": "The standard deviation of the noise in the units of the inputs, for example sigma=0.25.",
}
# What belongs to the network, not to a question about it.
OF_NETWORK = ("device", "mean", "std", "classes", "tokenizer", "vocabulary", "shape", "time_first")
BATCH = "batches are chosen by the memory that is free"


def explain_arguments(positional: str = "", **own: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a public function so that an argument that it does not have is answered with what is meant.

    Args:
        positional: what to do if too many arguments are given by position.
        own: for single names a sentence that replaces the general one.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = [
            one for one in inspect.signature(function).parameters.values() if one.kind != one.VAR_KEYWORD
        ]
        places = sum(one.kind is not one.KEYWORD_ONLY for one in parameters)
        names = [one.name for one in parameters]
        required = [one.name for one in parameters if one.default is one.empty]

        @functools.wraps(function)
        def call_with_hints(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs:
                if name not in names:
                    hint = own.get(name) or _meant(name, names)
                    raise TypeError(
                        f"{function.__name__}() got an unexpected keyword argument {name!r}. {hint}".rstrip()
                    )
            if len(args) > places:
                raise TypeError(
                    f"{function.__name__}() takes at most {places} arguments by position, "
                    f"({', '.join(names[:places])}), got {len(args)}. {positional or 'Name the others.'}"
                )
            absent = [name for name in required if name not in kwargs and names.index(name) >= len(args)]
            if absent:
                raise TypeError(
                    f"{function.__name__}() is missing {', '.join(absent)}. "
                    + " ".join(EXAMPLES[name] for name in absent if name in EXAMPLES)
                )
            return function(*args, **kwargs)

        return call_with_hints

    return decorate


def _meant(name: str, names: Sequence[str]) -> str:
    """What an unknown argument probably means, as a sentence; empty if nothing is close."""
    here = next((one for one in SYNONYMS.get(name, ()) if one in names), None)
    if here is not None:
        return f"It is called {here} here."
    if name in OF_NETWORK:
        return f"It belongs to the network: hf.Network.from_torch(model, {name}=...)."
    if name == "batch_size":
        return f"Leave it out: {BATCH}."
    near = difflib.get_close_matches(name, names, 1, CLOSE)
    return f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(names)}."
