"""Bounds of neural networks over regions.

`graph` holds the computation graph and `relax` the relaxations of activations. The methods are CROWN
(backward, `crown`), zonotopes (forward, `zonotope`), quadratic models (forward, `quadratic_models`), joint
relaxations of ReLUs (`sdp_dual`), and branch and bound (`branching`).
"""

from holdfast.bounding.graph import cells, inplace, operators  # importing them registers the operators

__all__ = ["cells", "inplace", "operators"]
