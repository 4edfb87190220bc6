"""Every rounding error that the engine charges: how many errors of which size, and where that is shown.

Each constant is one row of the table in docs/rounding.md, whose section derives it. `holdfast.rounding`
computes the charges. The factors were chosen by hand, larger than the derivations need; tests/test_rounding.py
checks with exact fractions that they suffice.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Derivation:
    """Why a charge covers the rounding errors of a computation whose sums have `terms` terms.

    Statement: docs/rounding.md, `section`, shows that at most `errors` errors occur, each at most
    gamma*(terms + operations) S, with gamma*(n) = n u / (1 - n u) and S the sum of the absolute values of
    everything that is added up. `charge` returns factor gamma*(terms + spare + 4) size. It is at least the sum
    of these errors because, for every terms <= MOST_TERMS (tests/test_rounding.py checks it exactly),

        factor gamma*(terms + spare + 4) (1 - 2^-12) (1 - 3 u) >= errors gamma*(terms + operations),

    where size >= (1 - 2^-12) S, being a computed sum of fewer than 2^41 nonnegative terms, and 1 - 3 u covers
    the operations of the charge itself.
    """

    section: str  # The heading in docs/rounding.md.
    what: str  # What is summed or rounded.
    errors: int
    operations: int  # Roundings in addition to those of the sum of `terms` terms.
    factor: int
    spare: int = 0
    # Whether the charge includes TINY. Not for sums of floats, which do not underflow, and not where the
    # charge joins a quantity to which its node adds TINY.
    underflow: bool = False


# The largest number of terms for which the inequality of `Derivation` is checked. float64 arithmetic on more
# terms than this does not fit in any memory.
MOST_TERMS = 10**12

# ---- Helpers
SUM_OF_TWO = Derivation("Helpers", "one addition of two numbers, one subtraction of its charge", 1, 2, 4, 1)
FEW_OPERATIONS = Derivation("Helpers", "up to three operations on nonnegative numbers", 1, 3, 4, 1)
NONNEGATIVE_SUM = Derivation("Helpers", "a sum of products of nonnegative numbers", 1, 2, 4)
LENGTH = Derivation("Helpers", "Euclidean length", 1, 2, 4)
SQUARED_MATRIX = Derivation("Helpers", "product of a matrix and its transpose", 2, 4, 4)
ROOT = Derivation("Helpers", "a sum and its square root", 1, 3, 8, 1)
EIGENVALUE_DEFICIT = Derivation("Helpers", "a Cholesky factor's product, and its difference", 2, 4, 8, 4)

# ---- Intervals
BOX_RADIUS = Derivation("Intervals", "radius of a box", 1, 1, 4, 1)
BOX_CENTRE = Derivation("Intervals", "centre of a box", 1, 1, 2, 1)
INTERVAL_MAP = Derivation("Intervals", "centre and radius through a map", 2, 3, 4, underflow=True)

# ---- Recurrent kernels
CONVEX_COMBINATION = Derivation("Recurrent kernels", "s a + (1 - s) b", 1, 16, 64, 1, underflow=True)

# ---- As executed
EXECUTED_SUM = Derivation("As executed", "a sum in the arithmetic of the network", 1, 8, 1, 16)
EXECUTED_FUNCTION = Derivation("As executed", "an activation in the arithmetic of the network", 1, 13, 1, 16)

# ---- Backward passes
BACKWARD_STEP = Derivation(
    "Backward passes", "coefficients, constants and relaxations of a node", 1, 12, 2, 16
)
BACKWARD_MEETING = Derivation("Backward passes", "sums of coefficients that meet", 1, 1, 2)
BACKWARD_CONSTANT = Derivation("Backward passes", "the constant less its charge", 1, 2, 8, 1, underflow=True)
STOPPED_ROW = Derivation("Backward passes", "an unperturbed node times a map", 2, 2, 4, 2)
LAST_SUM = Derivation("Backward passes", "minimum over the region plus constant", 1, 2, 8, 1, underflow=True)
WEIGHTED_ROWS = Derivation("Backward passes", "weighted sum of rows", 2, 2, 4)
BOX_CORNER = Derivation("Backward passes", "a linear function at a corner of a box", 1, 2, 2, underflow=True)
RANGE_MULTIPLIERS = Derivation("Backward passes", "multipliers times ranges", 1, 2, 4, 1, underflow=True)

# ---- Affine forms
FORM_RADIUS = Derivation("Affine forms", "sum of the generators' absolute values", 1, 1, 2)
FORM_BOUNDS = Derivation("Affine forms", "centre less radius and error", 1, 2, 4, 1, underflow=True)
FORM_MAP = Derivation("Affine forms", "centre, generators and error through a map", 3, 1, 4, underflow=True)
FORM_FUNCTION = Derivation(
    "Affine forms", "centre, generators and error through a function", 3, 6, 8, underflow=True
)
FORM_HALF_WIDTH = Derivation("Affine forms", "half of a band, and the errors that arrive", 1, 4, 4)
FORM_PRODUCT_RADIUS = Derivation("Affine forms", "radius of a sum of two forms", 1, 4, 4, underflow=True)
FORM_PRODUCT = Derivation("Affine forms", "band of a product of two forms", 1, 256, 2, 256, underflow=True)
FORM_CURVED = Derivation(
    "Affine forms", "band around products of noise symbols", 1, 256, 2, 256, underflow=True
)
FORM_REST = Derivation(
    "Affine forms", "a radius less that of the inputs' symbols", 3, 4, 8, 2, underflow=True
)
FORM_MERGED = Derivation("Affine forms", "radius of merged noise symbols", 1, 2, 4)
FORM_LINEAR_BOUND = Derivation("Affine forms", "linear bound read off a form", 3, 2, 4, underflow=True)
FORM_HULL = Derivation("Affine forms", "hull of forms along rotated axes", 6, 8, 32, underflow=True)
FORM_RELU = Derivation("Affine forms", "a ReLU with its own variable", 1, 6, 16, 1, underflow=True)
FORM_BALL = Derivation("Affine forms", "distance of two centres", 1, 1, 2, 1)
FORM_BALL_RADIUS = Derivation("Affine forms", "radius of a ball plus distances", 1, 3, 4)

# ---- Quadratic models
MODEL_MAP = Derivation("Quadratic models", "all coefficients through a map", 1, 4, 2, 16, underflow=True)
MODEL_FUNCTION = Derivation("Quadratic models", "a parabola or a product", 1, 16, 1, 16, underflow=True)
MODEL_VALUES = Derivation("Quadratic models", "range of a function", 1, 8, 1, 8)
MODEL_STORED = Derivation("Quadratic models", "a stored quadratic part", 1, 4, 2, 2)
MODEL_SIZE = Derivation("Quadratic models", "sum of the coefficients' absolute values", 1, 8, 4, 4)
MODEL_PARTS = Derivation("Quadratic models", "bounds of linear and quadratic parts", 3, 4, 8)
MODEL_SUM_OF_PARTS = Derivation("Quadratic models", "bounds of all parts", 3, 4, 8, underflow=True)
MODEL_RANGE = Derivation("Quadratic models", "range with fixed variables", 48, 4, 64, underflow=True)
MODEL_ROUNDS = Derivation("Quadratic models", "range, rounds of fixing variables", 30, 4, 32, underflow=True)
MODEL_BALLS = Derivation("Quadratic models", "range over balls", 8, 8, 32, underflow=True)

# ---- Duals
TRUST_REGION_DUAL = Derivation("Duals", "four sums of the dual value", 4, 8, 8, 16, underflow=True)
EIGENVALUE_BOUND = Derivation("Duals", "quadratic part, weights and multipliers", 4, 8, 8, 32, underflow=True)
EIGENVALUE_COLUMNS = Derivation("Duals", "sum of the small columns", 1, 2, 2)
SDP_PEAK = Derivation("Duals", "largest value of a dual term, coefficients", 1, 10, 8, 4, underflow=True)
SDP_PARABOLA = Derivation("Duals", "largest value of a parabola", 4, 10, 64, 4, underflow=True)
SDP_MATRIX = Derivation("Duals", "matrix of the dual", 3, 16, 8, 64)
SDP_DEFICIT = Derivation("Duals", "eigenvalue deficit times dimension", 1, 3, 2)
SDP_ROWS_ERROR = Derivation("Duals", "rows times errors of forms", 1, 2, 4)
SDP_ROWS = Derivation("Duals", "rows times forms, sums of sizes", 3, 4, 4, 4, underflow=True)

# ---- Taylor models
TAYLOR_MAP = Derivation("Taylor models", "coefficients through a map", 3, 4, 4, underflow=True)
TAYLOR_ROW_NORMS = Derivation("Taylor models", "lengths times norms, summed over sources", 1, 4, 8)
TAYLOR_REMAINDER = Derivation("Taylor models", "remainder through a map", 1, 2, 4)
TAYLOR_SUM = Derivation("Taylor models", "a remainder plus a node's own", 1, 2, 2, 1)
TAYLOR_COLUMNS = Derivation("Taylor models", "sums over the columns of a model", 2, 4, 8)
TAYLOR_FUNCTION = Derivation("Taylor models", "a parabola of a model", 1, 8, 4, 16)
TAYLOR_OWN = Derivation("Taylor models", "a node's own remainder", 1, 6, 1, 16)
TAYLOR_MASS = Derivation("Taylor models", "sum of the coefficients' absolute values", 1, 1, 2)
TAYLOR_RESPONSE = Derivation("Taylor models", "a row times slopes", 1, 3, 4, 1)
TAYLOR_RESPONSE_SUM = Derivation("Taylor models", "a row's ball through a node", 1, 6, 8, 1)
TAYLOR_ROW = Derivation("Taylor models", "a row times a map", 2, 2, 4)
TAYLOR_ROWS = Derivation("Taylor models", "rows of the output", 2, 4, 8, underflow=True)
TAYLOR_LINEAR_BOUND = Derivation("Taylor models", "linear bound read off a model", 3, 4, 8, underflow=True)

# ---- Gradients
GRADIENT_WIDTH = Derivation("Gradients", "half width through a map", 1, 4, 4, 16)
GRADIENT_MIDDLE = Derivation("Gradients", "middle through a map", 1, 2, 2, 16, underflow=True)
GRADIENT_SUM = Derivation("Gradients", "sum of two middles", 1, 1, 1, 1)
GRADIENT_INTERVAL = Derivation("Gradients", "middle of an interval of products", 1, 3, 4, 1, underflow=True)
GRADIENT_ENDPOINTS = Derivation("Gradients", "endpoints from middle and half width", 1, 2, 2, 1)

# ---- Flows
FLOW_STEP = Derivation("Flows", "weighted sum of forms", 3, 12, 4, 16, underflow=True)
FLOW_BOX = Derivation("Flows", "start plus time times rate", 1, 12, 2, 16, underflow=True)

# ---- Regions
NORM = Derivation("Regions", "norm: scaling, powers, sum, root", 3, 6, 16)
BALL_MINIMUM = Derivation("Regions", "row . centre less radius times dual norm", 2, 4, 4, underflow=True)
BALL_IN_BOX = Derivation("Regions", "dual bound over a ball in a box", 4, 6, 8, underflow=True)
BALL_BOX = Derivation("Regions", "the box around a ball", 1, 3, 1, 1, underflow=True)
HEADROOM = Derivation("Regions", "distance to a bound of the domain", 1, 1, 2, 1)
UNIT_GAINS = Derivation("Regions", "best gains of changed units", 3, 4, 4, underflow=True)
WORD_GAINS = Derivation("Regions", "best gains of replaced words", 6, 4, 8, underflow=True)
COLUMN_GAINS = Derivation("Regions", "best gains of changed columns", 4, 4, 8, underflow=True)
DRIFT_BOX = Derivation("Regions", "the box around shifted windows", 1, 4, 4, 1, underflow=True)
DRIFT_ROUNDING = Derivation("Regions", "rounded windows times a row", 1, 3, 4)
DRIFT_MINIMUM = Derivation("Regions", "minimum over shifted windows", 3, 4, 8, underflow=True)
BALL_LIMIT = Derivation("Regions", "distance of the furthest corner", 3, 6, 16)
PATCH_LIMIT = Derivation("Regions", "distance of a patch's furthest value", 3, 6, 32)
ROWS_LIMIT = Derivation("Regions", "scaled distance of the furthest row", 3, 8, 64)
POINT_IN_BALL = Derivation("Regions", "a candidate a little inside a ball (no proof)", 20, 4, 40)
POINT_IN_ROWS = Derivation("Regions", "a candidate a little inside scaled rows (no proof)", 20, 8, 64)
POINT_IN_DRIFT = Derivation("Regions", "a candidate a little inside a drift (no proof)", 20, 8, 80)

# ---- Properties
PROBABILITY = Derivation("Properties", "quotient of sums of exponentials", 1, 810, 2, 1024, underflow=True)
PROBABILITY_THRESHOLD = Derivation("Properties", "threshold less a probability", 1, 40, 2, 64, underflow=True)
PROBABILITY_SLOPE = Derivation(
    "Properties", "product of probabilities and leads", 1, 8, 16, 1, underflow=True
)
ENTROPY = Derivation("Properties", "sums of logarithms and exponentials", 1, 60, 2, 64, underflow=True)
MARGIN = Derivation("Properties", "difference of two outputs and epsilon", 1, 4, 8, 1, underflow=True)

# ---- Lipschitz bounds
METRIC_OPERATIONS = Derivation("Lipschitz bounds", "a few operations on nonnegative numbers", 1, 16, 32, 1)
METRIC_SLOPE = Derivation("Lipschitz bounds", "middle of a range of slopes", 1, 2, 4, 1)
METRIC_ROWS = Derivation("Lipschitz bounds", "slopes times rows", 1, 2, 2, 4, underflow=True)
METRIC_CHANGE = Derivation("Lipschitz bounds", "difference of two scores", 1, 2, 4, 1, underflow=True)

# ---- Changed pixels
LAYER_CHAIN = Derivation("Changed pixels", "every sum on the way", 8, 16, 16, 64)
CHANGE_INTERCEPTS = Derivation("Changed pixels", "intercepts of a change from the centre", 1, 6, 1, 4)
CHANGE_BOUND = Derivation(
    "Changed pixels", "value at the centre, change and offset", 1, 6, 2, 4, underflow=True
)
PIXEL_EFFECTS = Derivation("Changed pixels", "effects of pixels, summed over a layer", 32, 16, 64, 64)

# ---- Trees
TREE_CONSTANT = Derivation("Trees", "base, offset and values of the trees", 3, 4, 8)
TREE_SUM = Derivation("Trees", "sum over trees", 2, 2, 4)
LEAF_DISTANCE = Derivation("Trees", "distance of a leaf, rounded down", 20, 8, 128)

DERIVATIONS = {name: value for name, value in globals().items() if isinstance(value, Derivation)}
