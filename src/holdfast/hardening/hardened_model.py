"""Build the hardened network from the original one and the trained weights."""

import torch
from torch import Tensor, nn

from holdfast.errors import BadInput
from holdfast.hardening.training import TrainedModule
from holdfast.network import Network
from holdfast.network.adapter import Adapter, single_input_model
from holdfast.network.callable_fingerprint import hash_callable
from holdfast.network.recurrent import copy_module
from holdfast.network.tokens import lookups, of_vectors


def hardened_network(net: Network, live: TrainedModule) -> Network:
    """Return a network like the original with the trained weights; it shares no memory with either."""
    made = live.freeze()
    if net.vectors is not None:
        assert net.token_model is not None
        made.vectors = (net.vectors if live.vectors is None else live.vectors).detach().clone()
        made.token_model = copy_module(net.token_model)
        _fill(made.token_model, live.module, made.vectors)
    made.fingerprint, _ = hash_callable(user_module(made))
    return made


def user_module(net: Network) -> nn.Module:
    """Return the user's own module inside the network, if it was not modified."""
    whole = net.module if net.token_model is None else net.token_model
    if not isinstance(whole, Adapter) or single_input_model(net.module) is not None:
        raise BadInput(
            f"{net.name} takes one input at a time; harden trains on batches. Give it a model that takes "
            "batches."
        )
    return whole.model


def _fill(token_model: nn.Module, module: nn.Module, vectors: Tensor) -> None:
    """Copy trained weights and word vectors into the model that takes tokens."""
    behind = of_vectors(module)
    assert behind is not None
    assert isinstance(token_model, Adapter)
    whole = token_model.model
    held = dict(behind.behind.state_dict())
    with torch.no_grad():
        for name, value in whole.state_dict().items():
            if name in held:
                value.copy_(held[name])
        for name, begin, width in lookups(behind):
            table = whole.get_submodule(name)
            assert isinstance(table, nn.Embedding)
            table.weight.copy_(vectors[:, begin : begin + width])
