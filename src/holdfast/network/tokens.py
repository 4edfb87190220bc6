"""Token models: the embedding is split off, so that perturbations act on word vectors while results still
show words."""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn

from holdfast.errors import BadInput, UnsupportedLayer
from holdfast.foreign_text import first_line
from holdfast.network.adapter import tensor_of
from holdfast.network.recurrent import copy_module
from holdfast.network.trace import as_plain_module, export, where

if TYPE_CHECKING:
    from holdfast.network.network import Network
    from holdfast.region import Words

# Parts of the names of operators that read only sizes.
SIZES = ("sym_size", "_assert", "_guards")
# Operators that read only the shape of the ids.
SHAPES = (
    *SIZES,
    "zeros_like",
    "ones_like",
    "full_like",
    "new_zeros",
    "new_ones",
    "new_full",
)
# Comparisons of ids with a number.
COMPARED = (torch.ops.aten.ne.Scalar, torch.ops.aten.eq.Scalar)
# Operators that only rearrange the ids.
MOVES = tuple(
    f"aten.{name}"
    for name in ("clone.default", "transpose.int", "permute.default", "contiguous.default", "t.default")
)
# Number of words that are looked up in one call of an embedding (chosen by hand).
PART = 2**16
# Largest difference between outputs by ids and by word vectors that is attributed to rounding (chosen by
# hand).
RELATIVE_TOLERANCE = 1e-4
ABSOLUTE_TOLERANCE = 1e-5

# The word vectors that the model is being evaluated on, read by `_Lookup`.
_vectors: ContextVar[Tensor] = ContextVar("_vectors")


class _Lookup(nn.Module):
    """Takes the place of an embedding: returns the word vectors, or those of their columns that belong to
    this embedding."""

    def __init__(self, table: nn.Embedding, begin: int) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim, self.padding_idx, self.begin = (
            *table.weight.shape,
            table.padding_idx,
            begin,
        )

    def forward(self, ids: Tensor) -> Tensor:
        vectors = _vectors.get()
        if ids.shape != vectors.shape[:-1]:
            raise ValueError(
                f"its embedding reads ids of shape {tuple(ids.shape)}, not all ids as they were given"
            )
        is_only_table = vectors.shape[-1] == self.embedding_dim
        return vectors if is_only_table else vectors.narrow(-1, self.begin, self.embedding_dim)


class OfVectors(nn.Module):
    """A token model that takes word vectors instead of token ids. All ids that its code sees are `word`."""

    def __init__(self, model: nn.Module, word: int) -> None:
        super().__init__()
        self.behind, self.word = model, word

    def forward(self, vectors: Tensor, *lengths: Tensor) -> Any:
        ids = torch.full(vectors.shape[:-1], self.word, dtype=torch.int64, device=vectors.device)
        before = _vectors.set(vectors)
        try:
            return self.behind(ids, *lengths)
        finally:
            _vectors.reset(before)


def of_vectors(module: nn.Module) -> OfVectors | None:
    """The `OfVectors` inside a module, or None."""
    return next((part for part in module.modules() if isinstance(part, OfVectors)), None)


def lookups(model: OfVectors) -> list[tuple[str, int, int]]:
    """The replaced embeddings: the name of each, its first column in the word vectors, and its number of
    columns."""
    return [
        (name, part.begin, part.embedding_dim)
        for name, part in model.behind.named_modules()
        if isinstance(part, _Lookup)
    ]


def split_module(
    model: nn.Module, shape: tuple[int, int], *lengths: Tensor, output: str | None = None
) -> tuple[Tensor, OfVectors]:
    """Split the embeddings off a token model.

    Args:
        model: token ids of this shape, and the lengths if it takes them -> outputs.

    Returns:
        The word vectors (words, dim), those of several embeddings side by side; and a copy of the model that
        takes word vectors (*shape, dim) instead of ids.
    """
    names = _embeddings_of_ids(model, shape, *lengths)
    tables = []
    for name in names:
        table = model.get_submodule(name)
        assert isinstance(table, nn.Embedding)
        if table.max_norm is not None:
            raise BadInput(
                f"{type(model).__name__}: {name} has max_norm={table.max_norm:g}, so it changes its vectors "
                f"when they are read. Evaluate it once for every token, then set its max_norm to None."
            )
        _check_table(table, name, table.weight.device)
        tables.append(table)
    if len({len(table.weight) for table in tables}) > 1:
        sizes = ", ".join(f"{name}: {len(table.weight)}" for name, table in zip(names, tables, strict=True))
        raise BadInput(
            f"{type(model).__name__}: token ids go into tables of different length ({sizes}), so words have "
            f"no common vectors. Give holdfast the part behind them as a model of word vectors instead."
        )
    rest = copy_module(model)
    begin = 0
    for name, table in zip(names, tables, strict=True):
        rest.set_submodule(name, _Lookup(table, begin))
        begin += table.weight.shape[1]
    vectors = torch.cat([table.weight.detach() for table in tables], 1)
    return vectors, _model_of_vectors(model, rest, vectors, shape, *lengths, output=output)


def _embeddings_of_ids(model: nn.Module, shape: tuple[int, int], *lengths: Tensor) -> list[str]:
    """Names of the embeddings that look up exactly the input ids.

    The model is evaluated on two different inputs, so that an embedding of constants is not among them.
    """
    tables = {
        name: part
        for name, part in model.named_modules()
        if isinstance(part, nn.Embedding) and part.num_embeddings > 1
    }
    device = next((table.weight.device for table in tables.values()), torch.device("cpu"))
    pattern = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(1)).to(device)

    def called_with(first: Tensor, second: Tensor) -> set[str]:
        return _tables_called_with(model, tables, first, *lengths) & _tables_called_with(
            model, tables, second, *lengths
        )

    try:  # words 0 and 1 are often padding, which a model may refuse; but a table may have no others
        found = called_with(pattern + 2, 3 - pattern)
    except Exception:
        try:
            found = called_with(pattern, 1 - pattern)
        except Exception as error:
            raise BadInput(
                f"the model refused token ids of shape {shape}: {error}. holdfast gives the model one "
                f"tensor of ids, (batch, length): a model that takes a dict or several inputs needs a "
                f"module around it whose forward takes that tensor."
            ) from error
    if not found:
        bags = [name for name, part in model.named_modules() if isinstance(part, nn.EmbeddingBag)]
        why = (
            f"{bags[0]} is an nn.EmbeddingBag, which adds vectors up as it reads them. "
            f"Write it as an nn.Embedding and a sum"
            if bags
            else "token ids go into no nn.Embedding as they are given. "
            "Give holdfast the part behind the embedding as a model of word vectors instead"
        )
        raise BadInput(f"{type(model).__name__}: {why}.")
    return [name for name in tables if name in found]


def _tables_called_with(
    model: nn.Module, tables: Mapping[str, nn.Module], tokens: Tensor, *lengths: Tensor
) -> set[str]:
    """Names of the tables that are called with exactly these ids when the model is evaluated on them."""
    seen: set[str] = set()
    hooks = [
        table.register_forward_pre_hook(
            lambda _, inputs, name=name: seen.add(name) if torch.equal(inputs[0], tokens) else None
        )
        for name, table in tables.items()
    ]
    try:
        with torch.no_grad():
            model(tokens, *lengths)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def _model_of_vectors(
    model: nn.Module,
    rest: nn.Module,
    table: Tensor,
    shape: tuple[int, int],
    *lengths: Tensor,
    output: str | None = None,
) -> OfVectors:
    """The model of word vectors, with a `word` for which it has the same outputs as the token model on random
    sentences.

    Words that are often padding are left out of these sentences: `Network.embed` compares every sentence that
    is measured.
    """
    count, name = len(table), type(model).__name__
    padding = {
        0,
        *(part.padding_idx for part in model.modules() if isinstance(part, nn.Embedding)),
        _padding_of(model),
    } & {*range(count)}
    words = torch.tensor([word for word in range(count) if word not in padding] or [0], device=table.device)
    drawn = torch.randint(0, len(words), shape, generator=torch.Generator().manual_seed(0)).to(table.device)
    problem = ""
    for word in dict.fromkeys([int(words[-1]), int(words[0]), 0]):
        candidate = OfVectors(rest, word)
        try:
            with torch.no_grad():
                by_ids = tensor_of(model(words[drawn], *lengths), output)
                by_vectors = tensor_of(candidate(table[words[drawn]], *lengths), output)
            if by_ids.shape == by_vectors.shape and _same_outputs(by_ids, by_vectors):
                return candidate
        except BadInput:
            raise
        except Exception as error:
            problem = first_line(error)
    what = "on word vectors the model does not answer as it does on tokens"
    if problem:
        what = f"without its embedding the model does not run on word vectors ({problem})"
    raise BadInput(
        f"{name}: {what}. Something besides the embedding reads the token ids; give holdfast the part behind "
        f"it."
    )


def _same_outputs(first: Tensor, second: Tensor) -> bool:
    return torch.allclose(first, second, rtol=RELATIVE_TOLERANCE, atol=ABSOLUTE_TOLERANCE)


def _padding_of(model: nn.Module) -> Any:
    return getattr(getattr(model, "config", None), "pad_token_id", None)


def _check_table(table: nn.Embedding, name: str, device: torch.device) -> None:
    """Raise BadInput unless the embedding returns its row of the table for every word.

    A subclass or a hook may change it.
    """
    with torch.no_grad():
        for words in torch.arange(len(table.weight), device=device).split(PART):
            wrong = (table(words) != table.weight[words]).any(-1)
            if bool(wrong.any()):
                raise BadInput(
                    f"{name}: for token {int(words[wrong][0])} the embedding does not answer with its row "
                    f"of the table, so perturbations of word vectors have no meaning. Give holdfast the "
                    f"part behind the embedding as a model of word vectors instead."
                )


def check_only_vectors_are_read(net: "Network", words: "Words") -> None:
    """Raise UnsupportedLayer unless the traced token model uses nothing of these sentences but their word
    vectors.

    Then a bound for the word vectors holds for the sentences. The model may also compare ids with a number,
    as padding masks do, if the result is the same for all words of the perturbation set as for the word that
    the model of vectors sees.
    """
    shape = tuple(words.tokens.shape[1:])
    if net.token_model is None:
        return
    if shape not in net.tokens_checked:
        net.tokens_checked[shape] = _comparisons(net, words.tokens)
    known = of_vectors(net.module)
    for compare in net.tokens_checked[shape]:
        answers = compare(words.choices.unique())
        seen = ~answers if known is None else compare(torch.tensor([known.word], device=answers.device))
        if not bool((answers == seen).all()):
            raise UnsupportedLayer(
                "the model compares token ids with a number, as a padding mask does, and not all words of "
                "the sets give the same result. So bounds for word vectors need not hold for words: leave "
                "such words out. Enumeration, which evaluates the model itself, still works."
            )


def _comparisons(net: "Network", tokens: Tensor) -> list[Callable[[Tensor], Tensor]]:
    """The comparisons of ids with a number in the traced token model.

    Raises UnsupportedLayer if it uses ids in another way.
    """
    assert net.token_model is not None
    program = export(net.token_model, tokens[:1].to(net.device))
    module = as_plain_module(program)
    entry = next(node for node in module.graph.nodes if node.op == "placeholder")
    readers, seen = [entry], {entry}
    for node in readers:  # operators that only rearrange the ids pass them on to their users
        for user in node.users:
            if str(user.target) in MOVES and user not in seen:
                readers.append(user)
                seen.add(user)
    users = dict.fromkeys(user for node in readers for user in node.users if user not in seen)
    lookups = [
        user for user in users if user.target == torch.ops.aten.embedding.default and user.args[1] in seen
    ]
    compared = [
        user
        for user in users
        if user.target in COMPARED and user.args[0] in seen and isinstance(user.args[1], int | float)
    ]
    others = [
        u
        for u in users
        if u not in lookups and u not in compared and not any(size in str(u.target) for size in SHAPES)
    ]
    tables = {node.args[0] for node in lookups}
    if others or not tables or not all(_split_off(net, _at(module, table)) for table in tables):
        what = f"{where(others[0])}: {others[0].target} reads" if others else f"{len(tables)} embeddings read"
        raise UnsupportedLayer(
            f"{what} the token ids besides the embedding, so bounds for word vectors need not hold for "
            f"words and prove nothing about them. Enumeration, which evaluates the model itself, still "
            f"works."
        )
    return [partial(_query_target, user.target, user.args[1]) for user in compared]


def _query_target(target: Callable[..., Tensor], other: float, words: Tensor) -> Tensor:
    return target(words, other)


def _split_off(net: "Network", table: Tensor) -> bool:
    """Whether the network's word vectors are the rows of this table, or contain them as columns."""
    assert net.vectors is not None
    width = table.shape[1]
    begins = [part.begin for part in net.module.modules() if isinstance(part, _Lookup)] or [0]
    return any(torch.equal(net.vectors[:, begin : begin + width].to(table), table) for begin in begins)


def _at(module: fx.GraphModule, node: Any) -> Tensor:
    value: Any = module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    assert isinstance(value, Tensor)
    return value


def split_graph(model: fx.GraphModule, tokens: Tensor) -> tuple[Tensor, nn.Module]:
    """Split the embedding off an exported graph: its word vectors, and the graph without its aten.embedding
    of the input."""
    rest = copy_module(model)
    graph = rest.graph
    entry = next(node for node in graph.nodes if node.op == "placeholder")
    lookups = [n for n in graph.nodes if n.target == torch.ops.aten.embedding.default and n.args[1] is entry]
    others = [
        user for user in entry.users if user not in lookups and not any(s in str(user.target) for s in SIZES)
    ]
    tables = {node.args[0] for node in lookups}
    if others or len(tables) != 1:
        found = (
            f"also used by {', '.join(n.name for n in others)}"
            if others
            else f"looked up in {len(tables)} tables"
        )
        raise BadInput(
            f"token ids are {found}; they must go into exactly one embedding and nothing else. "
            f"Export the part behind the embedding as a model of word vectors instead."
        )
    table = _at(rest, tables.pop())
    for lookup in lookups:
        lookup.replace_all_uses_with(entry)  # batch and time are the same axes, so sizes stay right
        graph.erase_node(lookup)
    rest.recompile()
    _check(model, rest, table, tokens)
    return table.detach().clone(), rest


def _check(model: nn.Module, rest: nn.Module, table: Tensor, like: Tensor) -> None:
    """Raise BadInput if random sentences have other outputs by ids than by word vectors: then the model also
    reads the ids."""
    tokens = torch.randint(0, table.shape[0], like.shape, generator=torch.Generator().manual_seed(0)).to(like)
    try:
        with torch.no_grad():
            agree = _same_outputs(tensor_of(model(tokens)), tensor_of(rest(table[tokens])))
    except Exception as error:
        raise BadInput(
            f"{type(model).__name__}: without its embedding the model does not run on word vectors "
            f"({error}). Something else reads the token ids, perhaps for a padding mask; give holdfast the "
            f"part behind it."
        ) from error
    if not agree:
        raise BadInput(
            f"{type(model).__name__}: on word vectors the model does not answer as it does on tokens. "
            f"Something besides the embedding reads the token ids, perhaps for a padding mask; give "
            f"holdfast the part behind it."
        )
