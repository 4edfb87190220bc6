"""DeepQuant's Lipschitz metric Q of a score over a region: search for a lower bound, proof of an upper
bound.
"""

from holdfast.lipschitz.metric import MetricStep, Steepest
from holdfast.lipschitz.metric_bound import Shells, slope_bound

__all__ = ["MetricStep", "Shells", "Steepest", "slope_bound"]
