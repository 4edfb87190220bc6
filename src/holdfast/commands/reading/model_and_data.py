"""Load the network and the data of a command."""

from holdfast.commands.options import ModelOptions
from holdfast.commands.reading.model import load_network
from holdfast.errors import BadInput
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
    data = load_in_use(source, net, scale, limit, how, labels=labels)
    if (
        net.columns is not None and data.x and data.x[0].dim() > 1
    ):  # the file describes the features of windows
        net = net.with_columns(net.columns.as_channels())
    if net.channels is not None and data.columns is not None and list(net.channels.features) != data.columns:
        raise BadInput(
            f"the data name their features {', '.join(data.columns[:6])}, and --columns describes "
            f"{', '.join(net.channels.features[:6])}: give the same names in the same order."
        )
    return net, data
