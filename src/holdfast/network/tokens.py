"""Token models: the embedding is split off, so that regions live among word vectors and words can still be shown."""

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx, nn

from holdfast.errors import BadInput, UnsupportedLayer
from holdfast.network.adapter import first_of
from holdfast.network.trace import as_plain_module, export, where

if TYPE_CHECKING:
    from holdfast.network.network import Network

SIZES = ("sym_size", "_assert", "_guards")
MOVES = tuple(f"aten.{name}" for name in ("clone.default", "transpose.int", "permute.default", "contiguous.default", "t.default"))
PART = 2**16  # words looked up at once


def split_module(model: nn.Module, tokens: Tensor, *beside: Tensor) -> tuple[Tensor, nn.Module]:
    """model: token ids, shaped like `tokens`, -> outputs. Returns the vectors (words, dim) of the embedding that reads
    them, and a copy of the model that takes vectors (*tokens.shape, dim) in their place. `beside`: further arguments, lengths."""
    readers: list[str] = []
    hooks = [
        module.register_forward_pre_hook(lambda _, inputs, name=name: readers.append(name) if torch.equal(inputs[0], tokens) else None)
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding)
    ]
    try:
        with torch.no_grad():
            model(tokens, *beside)
    except Exception as error:
        raise BadInput(f"the model refused token ids of shape {tuple(tokens.shape)}: {error}") from error
    finally:
        for hook in hooks:
            hook.remove()
    if len(readers) != 1:
        raise BadInput(
            f"{type(model).__name__}: token ids go into {len(readers)} nn.Embedding layers ({', '.join(readers) or 'none'}); it must be "
            f"exactly one. Give holdfast the part behind the embedding as a model of word vectors instead."
        )
    table = model.get_submodule(readers[0])
    assert isinstance(table, nn.Embedding)
    if table.max_norm is not None:
        raise BadInput(
            f"{type(model).__name__}: {readers[0]} has max_norm={table.max_norm:g}, so it changes its vectors when they are read. Ask it "
            f"once for every token, then set its max_norm to None."
        )
    _check_table(table, readers[0], tokens.device)
    rest = copy.deepcopy(model)
    rest.set_submodule(readers[0], nn.Identity())
    _check(model, rest, table.weight, tokens, *beside)
    return table.weight.detach().clone(), rest


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


def tokens_read_once(net: "Network", tokens: Tensor) -> None:
    """Raise UnsupportedLayer unless the traced token model reads its ids through one embedding and in no other way.

    Then the model sees nothing of a sentence but its vectors, and what is proved of them holds for the sentences.
    """
    if net.token_model is None or tuple(tokens.shape[1:]) in net.tokens_checked:
        return
    program = export(net.token_model, tokens[:1].to(net.device))
    graph = as_plain_module(program).graph
    entry = next(node for node in graph.nodes if node.op == "placeholder")
    readers, seen = [entry], {entry}
    for node in readers:  # moving ids about is no reading
        for user in node.users:
            if str(user.target) in MOVES and user not in seen:
                readers.append(user)
                seen.add(user)
    users = {user for node in readers for user in node.users} - seen
    lookups = [user for user in users if user.target == torch.ops.aten.embedding.default and user.args[1] in seen]
    others = [user for user in users if user not in lookups and not any(size in str(user.target) for size in SIZES)]
    if others or len({node.args[0] for node in lookups}) != 1:
        what = f"{where(others[0])}: {others[0].target} reads" if others else f"{len(lookups)} embeddings read"
        raise UnsupportedLayer(
            f"{what} the token ids besides the embedding, so what holds for word vectors need not hold for words and nothing is proved of "
            f"them by bounds. Enumeration, which asks the model itself, still works."
        )
    net.tokens_checked.add(tuple(tokens.shape[1:]))


def split_graph(model: fx.GraphModule, tokens: Tensor) -> tuple[Tensor, nn.Module]:
    """The same for an exported graph: its one aten.embedding of the input is cut out."""
    rest = copy.deepcopy(model)
    graph = rest.graph
    entry = next(node for node in graph.nodes if node.op == "placeholder")
    lookups = [n for n in graph.nodes if n.target == torch.ops.aten.embedding.default and n.args[1] is entry]
    others = [user for user in entry.users if user not in lookups and not any(s in str(user.target) for s in SIZES)]
    tables = {node.args[0] for node in lookups}
    if others or len(tables) != 1:
        found = f"also used by {', '.join(n.name for n in others)}" if others else f"looked up in {len(tables)} tables"
        raise BadInput(
            f"token ids are {found}; they must go into exactly one embedding and nothing else. Export the part behind the "
            f"embedding as a model of word vectors instead."
        )
    table: Any = rest
    for part in str(tables.pop().target).split("."):
        table = getattr(table, part)
    assert isinstance(table, Tensor)
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
            whole, parts = first_of(model(tokens, *beside)), first_of(rest(table[tokens], *beside))
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
