"""Load the network and the data of a command."""

from holdfast.commands.options import ModelOptions
from holdfast.commands.reading.model import load_network
from holdfast.network import Network
from holdfast.reading.data import PLAIN, Data, load_in_use
from holdfast.reading.read_settings import ReadSettings


def load_both(
    model: ModelOptions,
    source: str,
    *,
    scale: float | None = None,
    limit: int | None = None,
    how: ReadSettings = PLAIN,
    labels: bool = True,
) -> tuple[Network, Data]:
    """The network, and the inputs to work on; labels: whether labels are needed."""
    net = load_network(model)
    return net, load_in_use(source, net, scale, limit, how, labels=labels)
