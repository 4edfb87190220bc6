"""Room: DeepQuant's Lipschitz metric Q of a score over a region, searched from below and certified from above."""

from holdfast.lipschitz.metric import Found, Step, search_metric
from holdfast.lipschitz.metric_bound import metric_bound, slope_bound

__all__ = ["Found", "Step", "metric_bound", "search_metric", "slope_bound"]
