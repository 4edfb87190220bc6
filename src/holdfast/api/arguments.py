"""Check and convert the arguments of the public functions before any work starts.

Each function here takes the name of an argument and what the caller gave, and returns the value that the
library works with. What cannot be used raises `BadInput` with a message that names the argument and says what
to give instead. Nothing here queries a model.
"""

import contextlib
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Protocol, get_args, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from holdfast.api import methods as method_choice
from holdfast.api.region_questions import classes_of
from holdfast.errors import BadInput
from holdfast.execution.scheduler import Sink
from holdfast.formatting import suggest
from holdfast.method import Method, known_methods
from holdfast.network import Network
from holdfast.network.classes import list_names
from holdfast.network.several_inputs import join_values
from holdfast.network.text import number_of
from holdfast.property import Property
from holdfast.reading.source import call
from holdfast.region import Domain, Region
from holdfast.region.units import Unit
from holdfast.region.words import Substitutes
from holdfast.solver import Stop

METHODS_BY_NAME = method_choice  # Importing this module registers every method that can be named.
ONNX_SUFFIXES = (".onnx", ".onnx.gz")
PICKLE_SUFFIXES = (".joblib", ".pkl", ".pickle", ".sav")
CHECKPOINT_SUFFIXES = (".pt", ".pth", ".bin", ".safetensors", ".ckpt")
NORM_NAMES = {
    "infinity": math.inf,
    "max": math.inf,
    "chebyshev": math.inf,
    "euclidean": 2.0,
    "manhattan": 1.0,
}
NORM_HELP = (
    "give 1, 2, math.inf (or 'inf'), any other number >= 1, or 0 to count changed pixels, frames or words"
)
SHOWN_CHARACTERS = 60  # of a value in a message


@runtime_checkable
class EstimatorLike(Protocol):
    """A fitted estimator of scikit-learn, XGBoost or LightGBM."""

    def fit(self, *args: Any, **kwargs: Any) -> Any: ...

    def predict(self, *args: Any, **kwargs: Any) -> Any: ...


ModelLike = Network | nn.Module | str | Path | EstimatorLike
DomainOption = tuple[float | Tensor, float | Tensor] | Domain | None
StopOption = Stop | float | None
SubstitutesOption = Substitutes | Mapping[str, Sequence[str]] | Sequence[Sequence[Sequence[str]]] | None
MethodsOption = Sequence[Method[Any] | str] | str | None


# ---- the model


def as_network(model: object, *, domain: DomainOption = None, x: object = None, name: str = "net") -> Network:
    """Return the network of a model: a given Network, or one read from a module, a file or an
    estimator.

    Args:
        model: a Network, a torch module, the path of an .onnx file, package.module:factory, or a fitted
            estimator.
        domain: the lowest and highest value of an input, for a model that is not a Network yet.
        x: the inputs, from which a module's token ids are recognised.
        name: the argument's name in messages.
    """
    if isinstance(model, Network):
        if domain is not None and not _same_domain(model.domain, check_domain(domain)):
            raise BadInput(
                f"domain: {model.name} is a Network and has the domain {model.domain} already. Leave "
                "domain out, or build the network "
                f"with it: hf.Network.from_torch(module, domain=(0, 1))."
            )
        return model
    limits = None if domain is None else check_domain(domain)
    if isinstance(model, str | Path):
        return _network_from_name(str(model), limits, x, name)
    if isinstance(model, type):
        raise BadInput(
            f"{name}: {model.__name__} is a class, not a model. Make an instance: {model.__name__}(...)."
        )
    if isinstance(model, nn.Module):
        return _network_from_module(model, limits, x, name)
    if isinstance(model, Mapping):
        raise BadInput(
            f"{name}: a {type(model).__name__} holds weights without a network. Build the module, call "
            "module.load_state_dict(weights) "
            f"and give the module."
        )
    if isinstance(model, EstimatorLike):
        return Network.from_sklearn(model, domain=limits)
    if callable(model):
        called = getattr(model, "__name__", type(model).__name__)
        raise BadInput(
            f"{name}: {called} is a plain function, and only you know whether it takes numpy arrays and "
            "which values are allowed. Say so: "
            f"hf.Network.from_callable({called}, domain=(0, 1))."
        )
    raise BadInput(
        f"{name}: expected a model, got {type(model).__name__}. Give a torch module, the path of an .onnx "
        "file, a fitted scikit-learn "
        f"estimator, or a hf.Network."
    )


def _same_domain(one: Domain, other: Domain) -> bool:
    return all(
        bool((a == b).all()) for a, b in ((one.lower, other.lower), (one.upper, other.upper))
    )  # broadcast


def _network_from_name(text: str, domain: Domain | None, x: object, name: str) -> Network:
    if text.endswith(ONNX_SUFFIXES):
        return Network.from_onnx(text, domain=domain)
    if text.endswith(".pt2"):
        raise BadInput(
            f"{name}: opening {text} can run code that it contains. If you trust whoever made it, build "
            "the network yourself: "
            f"hf.Network.from_export({text!r}, trust=True)."
        )
    if text.endswith(PICKLE_SUFFIXES):
        raise BadInput(
            f"{name}: opening the pickle {text} can run code that it contains. Load it yourself "
            "(joblib.load) and give the estimator."
        )
    if text.endswith(CHECKPOINT_SUFFIXES):
        raise BadInput(
            f"{name}: {text} is a checkpoint, weights without a network. Build the module, load the "
            "weights into it and give the module."
        )
    if ":" in text and not Path(text).exists():
        made = call(text, name)
        if isinstance(made, str | Path):
            raise BadInput(f"{name}: {text} returned a text, expected a model.")
        if isinstance(made, nn.Module):
            made.eval()
        return as_network(made, domain=domain, x=x, name=name)
    raise BadInput(
        f"{name}: {text!r} is no model. Give the path of an .onnx file, package.module:factory, a torch "
        "module, a fitted estimator, or a "
        f"hf.Network."
    )


def _network_from_module(module: nn.Module, domain: Domain | None, x: object, name: str) -> Network:
    kind = type(module).__name__
    layer = next((part for part in module.modules() if part.training and _depends_on_mode(part)), None)
    if layer is not None:
        raise BadInput(
            f"{name}: {kind} is in training mode, in which its {type(layer).__name__} layer answers "
            "differently. Call model.eval() first."
        )
    reads_ids = any(isinstance(part, nn.Embedding | nn.EmbeddingBag) for part in module.modules())
    if _holds_texts(x):
        raise BadInput(
            f"{name}: x holds texts, and a module does not say how text becomes token ids. Build the "
            "network with a tokenizer or with the "
            "words: hf.Network.from_torch(model, tokenizer=...), or hf.Network.from_torch(model, "
            "vocabulary=[...])."
        )
    tokens = reads_ids and _holds_integers(x)
    with _quiet_about_training_mode():
        return Network.from_torch(module, domain=domain, tokens=tokens)


@contextlib.contextmanager
def _quiet_about_training_mode() -> Iterator[None]:
    """A new module is in training mode until eval() is called; without layers that depend on it that changes
    nothing.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*training mode")
        yield


def _depends_on_mode(part: nn.Module) -> bool:
    """Whether a layer answers differently in training mode: batch norm, and dropout of any kind."""
    if isinstance(part, nn.modules.batchnorm._BatchNorm):
        return True
    share = getattr(part, "p" if isinstance(part, nn.modules.dropout._DropoutNd) else "dropout", 0.0)
    return isinstance(share, float) and share > 0


def _holds_texts(x: object) -> bool:
    return isinstance(x, Sequence) and not isinstance(x, str) and any(isinstance(row, str) for row in x)


def _holds_integers(x: object) -> bool:
    """Whether the inputs are whole numbers, as token ids are."""
    first = x[0] if isinstance(x, list | tuple) and x else x
    try:
        given = torch.as_tensor(first)
    except (TypeError, ValueError, RuntimeError):
        return False
    return not (given.is_floating_point() or given.is_complex() or given.dtype == torch.bool)


# ---- numbers, names and flags


def show(value: object) -> str:
    """Return a value as a short text for a message."""
    if isinstance(value, Tensor):
        text = f"{type(value).__name__} of shape {tuple(value.shape)}"
    elif isinstance(value, tuple | list) and any(isinstance(one, Tensor) for one in value):
        text = f"a {type(value).__name__} of {len(value)} tensors"
    elif isinstance(value, Region | nn.Module | Property):
        text = f"a {type(value).__name__}"
    else:
        text = " ".join(repr(value).split())
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def check_choice(name: str, value: object, allowed: Sequence[str]) -> None:
    """Raise unless the value is one of the names."""
    if not (isinstance(value, str) and value in allowed):
        raise BadInput(
            f"{name} {show(value)} is unknown; there are {', '.join(allowed)}.{suggest(value, allowed)}"
        )


def check_number(
    name: str, value: object, *, above: float = -math.inf, at_least: float = -math.inf, help: str = ""
) -> float:
    """Return a finite number above or at a limit."""
    plain = _plain_number(value)
    if plain is None or not math.isfinite(plain) or not plain > above or not plain >= at_least:
        wanted = "a number"
        if above > -math.inf:
            wanted = f"a number above {above:g}"
        elif at_least > -math.inf:
            wanted = f"a number, at least {at_least:g}"
        raise BadInput(f"{name}: expected {wanted}, got {show(value)}.{f' {help}' if help else ''}")
    return plain


def _plain_number(value: object) -> float | None:
    """A number as a float; None where it is none. A tensor or an array with a single element is one."""
    if isinstance(value, bool | str):
        return None
    if isinstance(value, Real):
        return float(value)
    if hasattr(value, "item") and getattr(value, "size", None) is not None:
        try:
            found = value.item()
        except (ValueError, RuntimeError):
            return None
        return float(found) if isinstance(found, Real) else None
    return None


def check_whole(name: str, value: object, *, at_least: int | None = None) -> None:
    """Raise unless the value is a whole number, at or above a limit."""
    wrong = isinstance(value, bool) or not isinstance(value, Integral)
    if wrong or (at_least is not None and int(value) < at_least):  # type: ignore[call-overload]
        limit = "" if at_least is None else f", at least {at_least}"
        raise BadInput(f"{name}: expected a whole number{limit}, got {show(value)}.")


def check_flag(name: str, value: object) -> None:
    """Raise unless the value is True or False."""
    if not isinstance(value, bool):
        raise BadInput(f"{name}: expected True or False, got {show(value)}.")


def check_norm(norm: object) -> float:
    """Return a norm as a number: 0, p >= 1 or infinity. Names such as 'inf', 'l2' and 'Linf' are read too."""
    if isinstance(norm, str):
        text = norm.strip().lower()
        short = text.removeprefix("l").removeprefix("_").replace("∞", "inf")
        try:
            number = NORM_NAMES[text] if text in NORM_NAMES else float(short)
        except ValueError:
            raise BadInput(f"norm {norm!r} is unknown: {NORM_HELP}.") from None
    else:
        plain = _plain_number(norm)
        if plain is None:
            raise BadInput(f"norm {show(norm)} is no norm: {NORM_HELP}.")
        number = plain
    if number != 0 and not number >= 1:
        raise BadInput(f"norm {number:g} is no norm: {NORM_HELP}.")
    return number


def check_domain(domain: object) -> Domain:
    """Return a domain from a pair (lowest, highest)."""
    if isinstance(domain, Domain):
        return domain
    if not isinstance(domain, tuple | list) or len(domain) != 2:
        raise BadInput(
            "domain: expected the lowest and the highest value of an input, as in (0, 1), got "
            f"{show(domain)}."
        )
    low, high = domain
    for end in (low, high):
        if not isinstance(end, Tensor) and _plain_number(end) is None and not hasattr(end, "__array__"):
            raise BadInput(f"domain: expected two numbers, as in (0, 1), got {show(domain)}.")
    return Domain.of((low, high))


def check_stop(stop: object, seconds: object = None) -> Stop | None:
    """Return when to stop: a given Stop, or one after a number of seconds. They are counted from now."""
    if stop is not None and seconds is not None:
        raise BadInput(
            "stop and seconds were both given: say seconds inside of stop, as in hf.Stop(seconds=5, "
            "queries=100)."
        )
    name, value = ("stop", stop) if seconds is None else ("seconds", seconds)
    if value is None or isinstance(value, Stop):
        if name == "seconds" and value is not None:
            raise BadInput("seconds: expected a number of seconds, got a Stop; give it as stop=.")
        return None if value is None else value.begin()
    number = _plain_number(value)
    if number is None or math.isnan(number) or number < 0:
        raise BadInput(
            f"{name}: expected a number of seconds{', at least 0' if number is not None else ''}, or "
            "hf.Stop(seconds=..., queries=..., "
            f"gap=...) as stop, got {show(value)}."
        )
    return (Stop() if math.isinf(number) else Stop(seconds=number)).begin()


def check_methods(methods: object, kinds: tuple[type, ...] = (Method,)) -> list[Any] | None:
    """Return the methods: instances as they are, names such as 'pgd' as methods with their usual settings."""
    if methods is None:
        return None
    given = [methods] if isinstance(methods, str | Method) else methods
    if not isinstance(given, Sequence):
        raise BadInput(
            f"methods: expected a list, as in ['pgd', 'certify'] or [hf.attacks.PGD()], got {show(methods)}."
        )
    if not given:
        raise BadInput(
            "methods: the list is empty, so nothing would be tried. Leave it out for the defaults."
        )
    return [_method(one, kinds) for one in given]


def _method(given: object, kinds: tuple[type, ...]) -> Any:
    known = known_methods()
    if isinstance(given, str):
        keyword = given.strip().lower().replace("_", "").replace("-", "").replace(" ", "")
        names = {name.replace("-", "").replace("_", ""): kind for name, kind in known.items()}
        names |= {kind.__name__.lower(): kind for kind in known.values()}
        if keyword not in names:
            raise BadInput(
                f"methods: {given!r} is unknown; there are {', '.join(known)}.{suggest(given, list(known))}"
            )
        try:
            return names[keyword]()
        except TypeError:
            raise BadInput(
                f"methods: {given!r} has settings without defaults; give an instance of "
                f"{names[keyword].__name__}."
            ) from None
    if isinstance(given, type) and issubclass(given, kinds):
        raise BadInput(f"methods: {given.__name__} is a class; give an instance: {given.__name__}().")
    if not isinstance(given, kinds):
        raise BadInput(
            f"methods: {show(given)} is no method; give names such as 'pgd', or instances such as "
            "hf.attacks.PGD()."
        )
    return given


def check_store(store: object) -> Sink | None:
    """Return a store, which keeps records while they are made."""
    if store is None or (hasattr(store, "load_known") and hasattr(store, "write")):
        return store
    raise BadInput(
        f"store: expected a hf.Store, got {show(store)}. Make one with hf.Store.create(folder), or go on "
        "with hf.Store.open(folder)."
    )


def check_search(seed: object, store: object = None) -> None:
    """Check what all searches take."""
    check_whole("seed", seed)
    check_store(store)


# ---- inputs, classes and words


def check_inputs(net: Network, x: object, name: str = "x") -> Any:
    """Return the inputs as they were given, or refuse in words what can never be a batch of inputs."""
    if hasattr(x, "columns") and hasattr(x, "to_numpy"):
        return x
    if isinstance(x, str):
        raise BadInput(f"{name} is a single text: give a list of texts.")
    if isinstance(x, Mapping) and net.input_tensors:
        return join_values(net.input_tensors, x, name)
    if isinstance(x, Mapping):
        raise BadInput(
            f"{name} is a dict; give the inputs alone, or read it by data = hf.load({name}, net) and give "
            "data.x."
        )
    if isinstance(x, Network | nn.Module):
        raise BadInput(f"{name} is a model: give the model first, then the inputs.")
    if isinstance(x, Dataset | DataLoader):
        first = "next(iter(loader))" if isinstance(x, DataLoader) else "next(iter(DataLoader(dataset, 100)))"
        raise BadInput(
            f"{name} is a {type(x).__name__}: give tensors, for example its first batch, {name}, y = {first}."
        )
    if not isinstance(x, Tensor | Sequence) and not hasattr(x, "__array__"):
        raise BadInput(
            f"{name} does not hold inputs: give a tensor (batch, ...), or a list with one for each input, "
            f"got {show(x)}."
        )
    kind = getattr(getattr(x, "dtype", None), "kind", "")
    if kind in ("O", "U", "S"):
        raise BadInput(
            f"{name} is an array of {'objects' if kind == 'O' else 'texts'}, not of numbers: give an array of "
            "floats, or texts as a list."
        )
    if isinstance(x, Tensor) and (x.is_complex() or x.dtype == torch.bool):
        raise BadInput(f"{name} holds {x.dtype}: give floating-point numbers.")
    shape = getattr(x, "shape", None)
    if shape is not None:
        if len(shape) == 0:
            raise BadInput(
                f"{name} does not hold inputs: give a tensor (batch, ...), or a list with one for each "
                f"input, got {show(x)}."
            )
        single = (len(shape) == 1 and net.shape != ()) or (net.vectors is None and tuple(shape) == net.shape)
        if single and int(shape[0]):
            raise BadInput(
                f"{name} has shape {tuple(shape)}, which has no batch axis: the first axis counts inputs. "
                f"Give {name}[None] for a "
                f"single one."
            )
    elif isinstance(x, Sequence) and x and isinstance(x[0], Real):
        raise BadInput(
            f"{name} is one list of numbers: give a list with one list for each input, as in [{name}]."
        )
    return x.detach() if isinstance(x, Tensor) else x


def check_classes(net: Network, y: Any, count: int, name: str = "y") -> Tensor | None:
    """Return classes as integers: names by the network's class names, floats that hold whole numbers as
    these.

    The answer is a tensor (inputs,) of int64, or None.
    """
    if y is None:
        return None
    if isinstance(y, str):
        y = [y]
    if isinstance(y, int | Integral):
        y = [int(y)]
        if count != 1:
            raise BadInput(f"{name} is one class for {count} inputs: give a list with one class for each.")
    if hasattr(y, "columns") and hasattr(y, "to_numpy"):
        first = next(iter(y.columns), "class")
        raise BadInput(f"{name} is a table: give the column of the classes, as in {name}[{first!r}].")
    if not isinstance(y, Tensor | Sequence) and not hasattr(y, "tolist"):
        raise BadInput(
            f"{name}: expected one class for each of the {count} inputs, a list or a tensor, got {show(y)}."
        )
    given = y.tolist() if hasattr(y, "tolist") else list(y)
    if isinstance(given, list) and any(isinstance(one, str) for one in given):
        if net.labels is None and net.classes is None:
            raise BadInput(
                f"{name} holds names ({show(given[0])}), and {net.name} has no class names. Give numbers "
                "from 0, or build the network with "
                f"its names in order: hf.Network.from_torch(model, classes=[...])."
            )
        if len(given) != count:
            raise BadInput(f"{name} holds {len(given)} classes for {count} inputs: give one for each.")
    placed = net.places_of(y)
    try:
        found = torch.as_tensor(placed)
    except (TypeError, ValueError, RuntimeError):
        raise BadInput(f"{name} must be integers, one class for each input, got {show(given)}.") from None
    if found.dim() == 2 and found.shape[0] == count and found.shape[1] > 1:
        raise BadInput(
            f"{name} have shape {tuple(found.shape)}, expected ({count},): one class for each input. "
            "One-hot rows become classes by "
            f"{name}.argmax(1)."
        )
    if found.dim() == 2 and found.shape == (count, 1):
        raise BadInput(
            f"{name} has shape {tuple(found.shape)}, expected ({count},): one class for each input. A column "
            f"becomes a list of classes by {name}[:, 0]."
        )
    if found.dtype == torch.bool and found.dim() == 1:
        found = found.long()  # False is class 0, True is class 1.
    if found.is_floating_point() and bool(found.isnan().any()):
        raise BadInput(f"{name} holds NaN: leave out inputs without a class.")
    whole = found.is_floating_point() and bool((found == found.round()).all())
    return classes_of(found.long() if whole else found, count, "labels" if name == "y" else name)


def check_lengths(lengths: Any) -> None:
    """Raise unless the lengths are whole numbers."""
    if lengths is None:
        return
    if (not isinstance(lengths, Tensor | Sequence) and not hasattr(lengths, "tolist")) or isinstance(
        lengths, str
    ):
        raise BadInput(f"lengths: expected one whole number for each input, got {show(lengths)}.")
    given = lengths.tolist() if hasattr(lengths, "tolist") else list(lengths)
    for one in given if isinstance(given, list) else [given]:
        check_whole("lengths", one.item() if isinstance(one, Tensor) else one)


def count_of(x: Any) -> int:
    """Return how many inputs there are."""
    try:
        return len(x)
    except TypeError:
        raise BadInput(
            f"x does not hold inputs: give a tensor (batch, ...), or a list, got {show(x)}."
        ) from None


def substitute_ids(net: Network, substitutes: object) -> Any:
    """Return substitutes as token ids: words are looked up in the network's vocabulary."""
    if substitutes is None:
        return None
    if not isinstance(substitutes, Mapping | Sequence) or isinstance(substitutes, str):
        raise BadInput(
            "substitutes: expected a dict, word -> words it may become, or for each sentence a list with "
            "a list for each of its words, "
            f"got {show(substitutes)}."
        )
    if net.vectors is None:  # `radius_problems` refuses it, with the other options in view.
        return substitutes
    number = number_of(net.vocabulary) if net.vocabulary is not None else {}
    if isinstance(substitutes, Mapping):
        return {
            _id_of(net, number, word): _ids_of(net, number, others) for word, others in substitutes.items()
        }
    return [
        [_ids_of(net, number, words) for words in sentence] if _is_list(sentence) else sentence
        for sentence in substitutes
    ]


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _ids_of(net: Network, number: Mapping[str, int], words: Any) -> Any:
    if isinstance(words, str):
        raise BadInput(
            f"substitutes: {words!r} stands alone; the words that may replace a word are a list, as in "
            f"[{words!r}]."
        )
    return [_id_of(net, number, word) for word in words] if _is_list(words) else words


def _id_of(net: Network, number: Mapping[str, int], word: Any) -> Any:
    if not isinstance(word, str):
        return word
    if not number:
        raise BadInput(
            f"substitutes: {word!r} is a word, and {net.name} has no vocabulary. Build it with "
            "vocabulary=[...], or give token ids."
        )
    found = number.get(word, number.get(word.lower()))
    if found is None:
        raise BadInput(
            f"substitutes: {word!r} is not in the vocabulary of {net.name} "
            f"({list_names(list(number)[:5])}, ...)."
            f"{suggest(word, list(number))}"
        )
    return found


def check_region(region: object, function: str) -> Region:
    """Return a region, or refuse in words what people give instead."""
    if isinstance(region, Region):
        return region
    if isinstance(region, Tensor) or hasattr(region, "__array__"):
        raise BadInput(
            f"region: {function} needs to know how far inputs may move, and these are inputs alone. Give "
            "hf.Ball(x, 0.05, torch.inf, "
            f"(0, 1)), or hf.Box.between(lower, upper)."
        )
    if isinstance(region, tuple | list) and len(region) == 2:
        raise BadInput("region: a pair of bounds is given as hf.Box.between(lower, upper).")
    if isinstance(region, type) and issubclass(region, Region):
        raise BadInput(f"region: {region.__name__} is a class; give an instance, as in hf.Ball(x, 0.05).")
    raise BadInput(f"region: expected a region such as hf.Ball or hf.Box, got {show(region)}.")


def check_unit(unit: object) -> None:
    """Raise unless this names what counts as one change."""
    if unit is not None:
        check_choice("unit", unit, get_args(Unit))


def check_values(values: object) -> None:
    """Raise unless these are the numbers that a changed one may take."""
    if values is None:
        return
    try:
        torch.as_tensor(list(values), dtype=torch.float64)  # type: ignore[call-overload]
    except (TypeError, ValueError, RuntimeError):
        raise BadInput(
            "values: expected the numbers that a changed number may take, as in range(256), got "
            f"{show(values)}."
        ) from None


def check_bounded(net: Network, domain: Domain | None = None) -> None:
    """Raise unless the domain has a lowest and a highest value."""
    if not (net.domain if domain is None else domain).bounded:
        raise BadInput(
            "domain: single units are changed to the lowest and highest value of a bounded domain, and "
            f"{net.name} has none. State it, as "
            f"in domain=(0, 1)."
        )


def check_mask(free: object) -> None:
    """Raise unless this is a bool mask, or one for each input."""
    if free is not None and not isinstance(free, Tensor | list | tuple) and not hasattr(free, "__array__"):
        raise BadInput(
            "free: expected a bool mask of the units that may change, or one for each input, got "
            f"{show(free)}."
        )


def float_inputs(net: Network, x: object, name: str = "x") -> Tensor:
    """Return inputs of one shape as a tensor of numbers; refuse token ids, texts and whole numbers."""
    check_inputs(net, x, name)
    if hasattr(x, "columns") and hasattr(x, "to_numpy"):
        return net.rows(x)
    if _holds_texts(x):
        raise BadInput(f"{name} holds texts, and here single numbers change: give floating-point inputs.")
    try:
        given = (
            torch.stack(list(x))
            if isinstance(x, list | tuple) and isinstance(x[0], Tensor)
            else torch.as_tensor(x)
        )
    except (TypeError, ValueError, RuntimeError, IndexError):
        raise BadInput(
            f"{name} must be one tensor (batch, *shape): all inputs need the same shape."
        ) from None
    if given.dim() == 0 or not len(given):
        raise BadInput("the data are empty: there is no input to ask about.")
    if given.dtype == torch.bool or given.is_complex():
        raise BadInput(f"{name} holds {given.dtype}: give floating-point numbers.")
    if not given.is_floating_point():
        kind = "token ids" if net.vectors is not None else "integers"
        raise BadInput(
            f"{name} holds {kind}, and here single numbers change: give floating-point inputs in the units "
            "of the domain "
            f"({name}.float(), divided by 255 where they are bytes)."
        )
    if not bool(given.isfinite().all()):
        row = int((~given.isfinite()).flatten(1).any(1).nonzero()[0, 0]) if given.dim() > 1 else 0
        raise BadInput(
            f"input {row} holds NaN or infinity. Remove it or repair it; robustness around it has no meaning."
        )
    return given
