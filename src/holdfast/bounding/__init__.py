"""Under the floor, for every room: the network's graph, its relaxations, and the walks that bound it: backwards by planes (crown),
forwards by affine forms (zonotope) and by quadratic models (second_order)."""

from holdfast.bounding.graph import cells, inplace, operators  # they fill the table of operators

__all__ = ["cells", "inplace", "operators"]
