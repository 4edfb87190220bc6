"""Token models: the embedding is split off, so that regions live among word vectors and words can still be shown."""

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

SIZES = ("sym_size", "_assert", "_guards")
SHAPES = (
    *SIZES,
    "zeros_like",
    "ones_like",
    "full_like",
    "new_zeros",
    "new_ones",
    "new_full",
)  # constants shaped like the ids
COMPARED = (torch.ops.aten.ne.Scalar, torch.ops.aten.eq.Scalar)
MOVES = tuple(
    f"aten.{name}"
    for name in ("clone.default", "transpose.int", "permute.default", "contiguous.default", "t.default")
)
PART = 2**16  # words looked up at once


_vectors: ContextVar[Tensor] = ContextVar("_vectors")


class _Lookup(nn.Module):
    """Where an embedding stood: answers with the vectors that the model was given, or with the columns of them that are its own."""

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
        own = vectors.shape[-1] == self.embedding_dim
        return vectors if own else vectors.narrow(-1, self.begin, self.embedding_dim)


class OfVectors(nn.Module):
    """A token model that is given vectors in the place of what its embeddings would look up. The ids that it sees are all one word."""

    def __init__(self, model: nn.Module, word: int) -> None:
        super().__init__()
        self.behind, self.word = model, word

    def forward(self, vectors: Tensor, *beside: Tensor) -> Any:
        ids = torch.full(vectors.shape[:-1], self.word, dtype=torch.int64, device=vectors.device)
        before = _vectors.set(vectors)
        try:
            return self.behind(ids, *beside)
        finally:
            _vectors.reset(before)


def of_vectors(module: nn.Module) -> OfVectors | None:
    """The model of vectors inside of an adapter."""
    return next((part for part in module.modules() if isinstance(part, OfVectors)), None)


def lookups(made: OfVectors) -> list[tuple[str, int, int]]:
    """Where embeddings stood in the model: the name of each, the first of its columns among the vectors, and how many it has."""
    return [
        (name, part.begin, part.embedding_dim)
        for name, part in made.behind.named_modules()
        if isinstance(part, _Lookup)
    ]


def split_module(
    model: nn.Module, shape: tuple[int, int], *beside: Tensor, output: str | None = None
) -> tuple[Tensor, OfVectors]:
    """model: token ids of this shape -> outputs. Returns the vectors (words, dim) of the embedding that reads them, of several side by
    side, and a copy of the model that takes vectors (*shape, dim) in their place. `beside`: further arguments, lengths."""
    names = _readers(model, shape, *beside)
    tables = []
    for name in names:
        table = model.get_submodule(name)
        assert isinstance(table, nn.Embedding)
        if table.max_norm is not None:
            raise BadInput(
                f"{type(model).__name__}: {name} has max_norm={table.max_norm:g}, so it changes its vectors when they are read. Ask it "
                f"once for every token, then set its max_norm to None."
            )
        _check_table(table, name, table.weight.device)
        tables.append(table)
    if len({len(table.weight) for table in tables}) > 1:
        sizes = ", ".join(f"{name}: {len(table.weight)}" for name, table in zip(names, tables, strict=True))
        raise BadInput(
            f"{type(model).__name__}: token ids go into tables of different length ({sizes}), so words have no common vectors. Give "
            f"holdfast the part behind them as a model of word vectors instead."
        )
    rest = copy_module(model)
    begin = 0
    for name, table in zip(names, tables, strict=True):
        rest.set_submodule(name, _Lookup(table, begin))
        begin += table.weight.shape[1]
    vectors = torch.cat([table.weight.detach() for table in tables], 1)
    return vectors, _agreeing(model, rest, vectors, shape, *beside, output=output)


def _readers(model: nn.Module, shape: tuple[int, int], *beside: Tensor) -> list[str]:
    """The embeddings that look up the ids as they are given. Asked with two patterns, so that an embedding of constants is none of them."""
    tables = {
        name: part
        for name, part in model.named_modules()
        if isinstance(part, nn.Embedding) and part.num_embeddings > 1
    }
    where = next((table.weight.device for table in tables.values()), torch.device("cpu"))
    pattern = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(1)).to(where)
    try:  # the first words are often padding, which a model may refuse; but a table may have no others
        found = _reading(model, tables, pattern + 2, *beside) & _reading(model, tables, 3 - pattern, *beside)
    except Exception:
        try:
            found = _reading(model, tables, pattern, *beside) & _reading(model, tables, 1 - pattern, *beside)
        except Exception as error:
            raise BadInput(
                f"the model refused token ids of shape {shape}: {error}. holdfast gives the model one tensor of ids, (batch, length): a "
                f"model that takes a dict or several inputs needs a module around it whose forward takes that tensor."
            ) from error
    if not found:
        bags = [name for name, part in model.named_modules() if isinstance(part, nn.EmbeddingBag)]
        why = (
            f"{bags[0]} is an nn.EmbeddingBag, which adds vectors up as it reads them. Write it as an nn.Embedding and a sum"
            if bags
            else "token ids go into no nn.Embedding as they are given. Give holdfast the part behind the embedding instead, of word vectors"
        )
        raise BadInput(f"{type(model).__name__}: {why}.")
    return [name for name in tables if name in found]


def _reading(model: nn.Module, tables: Mapping[str, nn.Module], tokens: Tensor, *beside: Tensor) -> set[str]:
    """The tables that are given exactly these ids when the model is."""
    seen: set[str] = set()
    hooks = [
        table.register_forward_pre_hook(
            lambda _, inputs, name=name: seen.add(name) if torch.equal(inputs[0], tokens) else None
        )
        for name, table in tables.items()
    ]
    try:
        with torch.no_grad():
            model(tokens, *beside)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def _agreeing(
    model: nn.Module,
    rest: nn.Module,
    table: Tensor,
    shape: tuple[int, int],
    *beside: Tensor,
    output: str | None = None,
) -> OfVectors:
    """The model of vectors, seeing a word with which it answers as the model of tokens does. Sentences with words that are often padding
    need not agree here: `Network.embed` compares every sentence that is measured."""
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
        made = OfVectors(rest, word)
        try:
            with torch.no_grad():
                asked = (model(words[drawn], *beside), made(table[words[drawn]], *beside))
                whole, parts = (tensor_of(answer, output) for answer in asked)
            if whole.shape == parts.shape and torch.allclose(whole, parts, rtol=1e-4, atol=1e-5):
                return made
        except BadInput:
            raise
        except Exception as error:
            problem = first_line(error)
    told = f"without its embedding the model does not run on word vectors ({problem})" if problem else (
        "on word vectors the model does not answer as it does on tokens"
    )  # fmt: skip
    raise BadInput(
        f"{name}: {told}. Something besides the embedding reads the token ids; give holdfast the part behind it."
    )


def _padding_of(model: nn.Module) -> Any:
    return getattr(getattr(model, "config", None), "pad_token_id", None)


def _check_table(table: nn.Embedding, name: str, device: torch.device) -> None:
    """Every word must come out as its row of the table: a subclass or a hook may say otherwise for some."""
    with torch.no_grad():
        for words in torch.arange(len(table.weight), device=device).split(PART):
            wrong = (table(words) != table.weight[words]).any(-1)
            if bool(wrong.any()):
                raise BadInput(
                    f"{name}: for token {int(words[wrong][0])} the embedding does not answer with its row of the table, so regions among "
                    f"word vectors have no meaning. Give holdfast the part behind the embedding as a model of word vectors instead."
                )


def tokens_read_once(net: "Network", words: "Words") -> None:
    """Raise UnsupportedLayer unless the traced token model learns nothing of these sentences but their vectors.

    Then what is proved of the vectors holds for the sentences. Ids may also be compared with a number, as masks of padding do, where the
    answer is the same for all words of the region as for the word that the model of vectors sees.
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
                "the model compares token ids with a number, as a mask of padding does, and not all words of the sets fall on one side. So "
                "what holds for word vectors need not hold for words: leave such words out. Enumeration, which asks the model, still works."
            )


def _comparisons(net: "Network", tokens: Tensor) -> list[Callable[[Tensor], Tensor]]:
    """What the traced token model asks of its ids besides their vectors."""
    assert net.token_model is not None
    program = export(net.token_model, tokens[:1].to(net.device))
    module = as_plain_module(program)
    entry = next(node for node in module.graph.nodes if node.op == "placeholder")
    readers, seen = [entry], {entry}
    for node in readers:  # moving ids about is no reading
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
            f"{what} the token ids besides the embedding, so what holds for word vectors need not hold for words and nothing is proved of "
            f"them by bounds. Enumeration, which asks the model itself, still works."
        )
    return [partial(_query_target, user.target, user.args[1]) for user in compared]


def _query_target(target: Callable[..., Tensor], other: float, words: Tensor) -> Tensor:
    return target(words, other)


def _split_off(net: "Network", table: Tensor) -> bool:
    """Whether the network's vectors are the rows of this table, or have them side by side with those of others."""
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
    """The same for an exported graph: its one aten.embedding of the input is cut out."""
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
            f"token ids are {found}; they must go into exactly one embedding and nothing else. Export the part behind the "
            f"embedding as a model of word vectors instead."
        )
    table = _at(rest, tables.pop())
    for lookup in lookups:
        lookup.replace_all_uses_with(entry)  # batch and time stand in the same places, so sizes stay right
        graph.erase_node(lookup)
    rest.recompile()
    _check(model, rest, table, tokens)
    return table.detach().clone(), rest


def _check(model: nn.Module, rest: nn.Module, table: Tensor, like: Tensor, *beside: Tensor) -> None:
    """Random words must get the same answer either way, or something other than the embedding reads the tokens."""
    tokens = torch.randint(0, table.shape[0], like.shape, generator=torch.Generator().manual_seed(0)).to(like)
    try:
        with torch.no_grad():
            whole, parts = tensor_of(model(tokens, *beside)), tensor_of(rest(table[tokens], *beside))
        agree = torch.allclose(whole, parts, rtol=1e-4, atol=1e-5)
    except Exception as error:
        raise BadInput(
            f"{type(model).__name__}: without its embedding the model does not run on word vectors ({error}). Something else "
            f"reads the token ids, a padding mask perhaps; give holdfast the part behind it."
        ) from error
    if not agree:
        raise BadInput(
            f"{type(model).__name__}: on word vectors the model does not answer as it does on tokens. Something besides the "
            f"embedding reads the token ids, a padding mask perhaps; give holdfast the part behind it."
        )
