"""Load the network and the data of a command."""

from holdfast.cli.options import ModelOptions
from holdfast.cli.reading.model import load_network
from holdfast.network import Network
from holdfast.reading.data import PLAIN, Data, asked_about
from holdfast.reading.read_settings import How


def load_both(
    model: ModelOptions,
    source: str,
    *,
    scale: float | None = None,
    limit: int | None = None,
    how: How = PLAIN,
    labels: bool = True,
) -> tuple[Network, Data]:
    """The network, and the inputs to work on; labels: whether labels are needed."""
    net = load_network(model)
    return net, asked_about(source, net, scale, limit, how, labels=labels)
