"""Room 3: what a network can do over a whole region of inputs."""

from holdfast.lipschitz.instances import Instance, read_instances, read_key
from holdfast.lipschitz.mesh import Mesh
from holdfast.lipschitz.metric import Found, Step, search_metric
from holdfast.lipschitz.ranges import Range
from holdfast.lipschitz.reach import reach
from holdfast.lipschitz.slope import metric_bound, slope_bound
from holdfast.lipschitz.smoothing import Smoothed, Smoothing, smoothed
from holdfast.lipschitz.verify import Verdict, verify

__all__ = [
    "Found", "Instance", "Mesh", "Range", "Smoothed", "Smoothing", "Step", "Verdict", "metric_bound", "reach", "read_instances", "read_key",
    "search_metric", "slope_bound", "smoothed", "verify",
]  # fmt: skip
