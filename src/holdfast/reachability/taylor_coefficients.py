"""Taylor coefficients in time of the solutions of dx/dt = f(x, u), as a network of the start x and the input u.

Statement. Let x(t) solve dx/dt = f(x, u) with x(0) = x_0, u constant, and f analytic near x_0. Then

    x(t) = x_0 + x_1(x_0, u) t + x_2(x_0, u) t^2 + ...,    (j + 1) x_{j+1} = the j-th coefficient of f(x(t), u),

and the coefficient of every elementary operation follows from those of its operands (`RULES`), for example

    (a b)_j = sum over i of a_i b_{j-i},    j sin(y)_j = sum over i >= 1 of i y_i cos(y)_{j-i}.

`TaylorCoefficients` evaluates these recurrences with torch operators, so the coefficients are traced, checked
against the model and bounded like any other network. Every elementary operation occurs once for each order: a
bound of x_1 t + x_2 t^2 + ... keeps the dependence between the orders.

The functions here have derivatives of every order wherever they are defined. Others (ReLU, absolute value,
clipping, comparisons) have no Taylor expansion across a kink and are refused by name.

References: Moore, "Interval analysis" (1966), chapter 11; Griewank, Walther, "Evaluating derivatives" (2nd
edition 2008), table 13.2, for the recurrences.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from holdfast.errors import UnsupportedLayer
from holdfast.network.trace import where
from holdfast.rounding import TINY

aten = torch.ops.aten

# A coefficient that is zero for every start is None, so that no node is made for it.
Coefficient = Any


class TimeSeries:
    """The coefficients of one value of the program, those of lowest order first."""

    def __init__(self, name: str, extend: Callable[[int], Coefficient]) -> None:
        self.name, self.extend = name, extend
        self.known: list[Coefficient] = []

    def __getitem__(self, order: int) -> Coefficient:
        while len(self.known) <= order:
            self.known.append(self.extend(len(self.known)))
        return self.known[order]


def _sum(parts: Sequence[Coefficient]) -> Coefficient:
    total = None
    for part in parts:
        if part is not None:
            total = part if total is None else total + part
    return total


def _product(a: Coefficient, b: Coefficient) -> Coefficient:
    return None if a is None or b is None else a * b


def _scale(a: Coefficient, factor: float) -> Coefficient:
    return a if a is None or factor == 1 else a * factor


def _difference(a: Coefficient, b: Coefficient) -> Coefficient:
    if b is None:
        return a
    return -b if a is None else a - b


def _convolution(
    a: TimeSeries, b: TimeSeries, order: int, first: int = 0, last: int | None = None
) -> Coefficient:
    """The sum of a_i b_{order-i} for first <= i <= last."""
    last = order if last is None else last
    return _sum([_product(a[i], b[order - i]) for i in range(first, last + 1)])


def _chain(y: TimeSeries, slope: TimeSeries, order: int) -> Coefficient:
    """The coefficient of g(y) of this order >= 1, where slope = g'(y): (g' y')_{order-1} / order."""
    return _sum([_scale(_product(y[i], slope[order - i]), i / order) for i in range(1, order + 1)])


def _function(
    name: str, y: TimeSeries, value: Callable[[Tensor], Tensor]
) -> "tuple[TimeSeries, list[TimeSeries]]":
    """The series of g(y), of which g'(y) is appended to the list later."""
    slopes: list[TimeSeries] = []
    return TimeSeries(name, lambda j: value(y[0]) if j == 0 else _chain(y, slopes[0], j)), slopes


def _multiply(a: TimeSeries, b: TimeSeries) -> TimeSeries:
    if a is b:
        return _square(a)
    return TimeSeries(f"{a.name} {b.name}", lambda j: _convolution(a, b, j))


def _square(y: TimeSeries) -> TimeSeries:
    def extend(j: int) -> Coefficient:
        twice = [_scale(_product(y[i], y[j - i]), 2) for i in range((j + 1) // 2)]
        middle = [y[j // 2].square()] if j % 2 == 0 and y[j // 2] is not None else []
        return _sum([*twice, *middle])

    return TimeSeries(f"{y.name}^2", extend)


def _divide(a: TimeSeries, b: TimeSeries) -> TimeSeries:
    """q = a / b from q b = a."""

    def extend(j: int) -> Coefficient:
        rest = _difference(a[j], _sum([_product(quotient[i], b[j - i]) for i in range(j)]))
        return None if rest is None else rest / b[0]

    quotient = TimeSeries(f"{a.name} / {b.name}", extend)
    return quotient


def _constant(like: TimeSeries, value: float) -> TimeSeries:
    return TimeSeries(str(value), lambda j: torch.full_like(like[0], value) if j == 0 else None)


def _waves(y: TimeSeries) -> tuple[TimeSeries, TimeSeries]:
    """sin(y) and cos(y)."""
    sine, sine_slope = _function(f"sin {y.name}", y, torch.sin)
    cosine, cosine_slope = _function(f"cos {y.name}", y, torch.cos)
    sine_slope.append(cosine)
    cosine_slope.append(TimeSeries("-sin", lambda j: _scale(sine[j], -1.0)))
    return sine, cosine


def _exponential(y: TimeSeries) -> TimeSeries:
    found, slope = _function(f"exp {y.name}", y, torch.exp)
    slope.append(found)
    return found


def _logarithm(y: TimeSeries) -> TimeSeries:
    found, slope = _function(f"log {y.name}", y, torch.log)
    slope.append(_divide(_constant(y, 1.0), y))
    return found


def _root(y: TimeSeries) -> TimeSeries:
    """r = sqrt(y) from r r = y."""

    def extend(j: int) -> Coefficient:
        if j == 0:
            return y[0].sqrt()
        rest = _difference(y[j], _sum([_product(found[i], found[j - i]) for i in range(1, j)]))
        return None if rest is None else rest / (2 * found[0])

    found = TimeSeries(f"sqrt {y.name}", extend)
    return found


def _tanh(y: TimeSeries) -> TimeSeries:
    """tanh' = 1 - tanh^2."""
    found, slope = _function(f"tanh {y.name}", y, torch.tanh)
    square = _square(found)
    slope.append(TimeSeries("1 - tanh^2", lambda j: _difference(1.0 if j == 0 else None, square[j])))
    return found


def _sigmoid(y: TimeSeries) -> TimeSeries:
    """sigmoid' = sigmoid - sigmoid^2."""
    found, slope = _function(f"sigmoid {y.name}", y, torch.sigmoid)
    square = _square(found)
    slope.append(TimeSeries("s - s^2", lambda j: _difference(found[j], square[j])))
    return found


def _power(y: TimeSeries, exponent: Any) -> TimeSeries:
    if isinstance(exponent, float | int) and float(exponent) == 0.5:
        return _root(y)
    if not isinstance(exponent, float | int) or float(exponent) != int(exponent):
        raise UnsupportedLayer(
            f"the plant raises a value to the power {exponent}, which has no Taylor expansion here; integer "
            "powers and 0.5 do."
        )
    n = int(exponent)
    if n < 0:
        return _divide(_constant(y, 1.0), _power(y, -n))
    if n == 0:
        return _constant(y, 1.0)
    if n == 1:
        return y
    if n == 2:
        return _square(y)
    found, slope = _function(f"{y.name}^{n}", y, lambda v: v**n)
    lower = _power(y, n - 1)
    slope.append(TimeSeries("", lambda j: _scale(lower[j], float(n))))
    return found


# Operators of one series, and their series. Sine and cosine share theirs (`_Interpreter.call`).
RULES: dict[Any, Callable[[TimeSeries], TimeSeries]] = {
    aten.exp.default: _exponential,
    aten.log.default: _logarithm,
    aten.sqrt.default: _root,
    aten.tanh.default: _tanh,
    aten.sigmoid.default: _sigmoid,
    aten.square.default: _square,
    aten.reciprocal.default: lambda y: _divide(_constant(y, 1.0), y),
    aten.rsqrt.default: lambda y: _divide(_constant(y, 1.0), _root(y)),
}
WAVES = {aten.sin.default: 0, aten.cos.default: 1}
# Operators that are linear in all tensors together: applied to the coefficients of each order, with constants
# that take part in order zero only.
LINEAR = {
    aten.neg.default, aten.view.default, aten.reshape.default, aten.select.int, aten.slice.Tensor,
    aten.unbind.int, aten.stack.default, aten.cat.default, aten.squeeze.dim, aten.squeeze.default,
    aten.squeeze.dims, aten.unsqueeze.default, aten.expand.default, aten.expand_as.default, aten.sum.dim_IntList,
    aten.mean.dim, aten.permute.default, aten.transpose.int, aten.t.default, aten.clone.default,
    aten.alias.default, aten.flatten.using_ints, aten.split.Tensor, aten.split_with_sizes.default,
    aten.chunk.default, aten.index_select.default, aten.narrow.default, aten.contiguous.default, aten.to.dtype,
    aten._to_copy.default, aten.add.Tensor, aten.sub.Tensor, aten.rsub.Scalar, aten.add.Scalar,
    aten.sub.Scalar, aten.flip.default, aten.view_as.default, aten.detach.default, aten.lift_fresh_copy.default,
    operator.getitem,
}  # fmt: skip
# Operators whose first argument is a tensor like the operands: for higher orders, constants become zeros.
PRODUCTS = {aten.mul.Tensor, aten.mul.Scalar, aten.matmul.default, aten.mm.default, aten.bmm.default}
QUOTIENTS = {aten.div.Tensor, aten.div.Scalar}
POWERS = {aten.pow.Tensor_Scalar}


JOINED = object()  # The value of z = (x, u) itself: only its two parts have series.


class _Interpreter:
    """Replaces every value of a traced program by its series."""

    def __init__(self, program: fx.GraphModule, states: int) -> None:
        self.program, self.states = program, states
        self.waves: dict[TimeSeries, tuple[TimeSeries, TimeSeries]] = {}

    def run(self, x: TimeSeries, u: TimeSeries) -> TimeSeries:
        """The series of f(x, u); the program reads z = (x, u) and takes it apart first (`JoinedPlant`)."""
        known: dict[fx.Node, Any] = {}
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                known[node] = JOINED
            elif node.target is aten.slice.Tensor and known.get(node.args[0]) is JOINED:
                known[node] = JOINED if node.args[1] == 0 else x if node.args[2] == 0 else u
            elif node.op == "get_attr":
                known[node] = operator.attrgetter(str(node.target))(self.program)
            elif node.op == "output":
                result = node.args[0]
                while isinstance(result, tuple | list):
                    result = result[0]
                found: TimeSeries = known[result]
                return found
            else:
                known[node] = self.call(node, known)
        raise AssertionError("a traced program has an output")

    def call(self, node: fx.Node, known: dict[fx.Node, Any]) -> Any:
        args: Any = fx.node.map_arg(node.args, known.__getitem__)
        kwargs: Any = fx.node.map_arg(node.kwargs, known.__getitem__)
        target: Any = node.target
        series = [leaf for leaf in _leaves((args, kwargs)) if isinstance(leaf, TimeSeries)]
        if not series:
            return target(*args, **kwargs)
        values = _leaves(node.meta.get("val"))
        floats = all(isinstance(value, Tensor) and value.is_floating_point() for value in values)
        found = self._series(node.name, target, args, kwargs, series) if floats else None
        if found is None:
            raise UnsupportedLayer(
                f"the plant's layer {where(node)}: {target} has no Taylor expansion in time here. An ODE may use "
                "sums, products, quotients, integer powers, sin, cos, exp, log, sqrt, tanh and sigmoid. Functions "
                "with a kink have none: give a discrete plant (discrete=True)."
            )
        return found

    def _series(
        self, name: str, target: Any, args: Any, kwargs: Any, series: list[TimeSeries]
    ) -> TimeSeries | None:
        """The series of an operator's result; None if there is no rule."""
        if target in RULES:
            return RULES[target](series[0])
        if target in WAVES:
            if series[0] not in self.waves:
                self.waves[series[0]] = _waves(series[0])
            return self.waves[series[0]][WAVES[target]]
        if target in POWERS:
            return _power(args[0], args[1])
        if target is aten.mul.Tensor and len(series) == 2:
            return _multiply(*series)
        if target in QUOTIENTS and isinstance(args[1], TimeSeries):
            if len(series) == 2:
                return _divide(*series)
            inverse = _divide(_constant(args[1], 1.0), args[1])
            return self._linear(name, aten.mul.Tensor, (inverse, args[0]), {})
        linear = target in LINEAR or (target in PRODUCTS | QUOTIENTS and len(series) == 1)
        if linear or (target is aten.linear.default and args[0] is series[0] and len(series) == 1):
            return self._linear(name, target, args, kwargs)
        return None

    def _linear(self, name: str, target: Any, args: Any, kwargs: Any) -> TimeSeries:
        """An operator that is linear in its series, with everything else constant."""
        joined = target in (aten.cat.default, aten.stack.default)
        sums = target in (
            aten.add.Tensor,
            aten.sub.Tensor,
            aten.add.Scalar,
            aten.sub.Scalar,
            aten.rsub.Scalar,
        )
        series = [leaf for leaf in _leaves((args, kwargs)) if isinstance(leaf, TimeSeries)]

        def extend(j: int) -> Coefficient:
            if all(part[j] is None for part in series):
                return None

            def at(leaf: Any) -> Any:
                if isinstance(leaf, TimeSeries):
                    value = leaf[j]
                    if isinstance(value, tuple | list):
                        return value
                    return torch.zeros_like(leaf[0]) if value is None else value
                if isinstance(leaf, Tensor) and j and joined:
                    return torch.zeros_like(leaf)
                return leaf

            if j and sums and len(series) == 1:
                part, whole = self._without_constant(target, args, kwargs, j), found[0]
                # The constant may have more axes, or longer ones, than the series.
                same = part.dim() == whole.dim() and part.shape[1:] == whole.shape[1:]
                return part if same else part.expand(whole.shape)
            given = _map(args, at)
            if j and target is aten.linear.default:
                given = given[:2]
            return target(*given, **_map(kwargs, at))

        found = TimeSeries(name, extend)
        return found

    @staticmethod
    def _without_constant(target: Any, args: Any, kwargs: Any, j: int) -> Coefficient:
        """The coefficient of order >= 1 of a sum of a series and a constant."""
        first = isinstance(args[0], TimeSeries)
        part = args[0][j] if first else args[1][j]
        alpha = kwargs.get("alpha", 1)
        if target is aten.rsub.Scalar:
            return -part
        if first:
            return part
        return _scale(part, float(alpha if target is aten.add.Tensor else -alpha))


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, tuple | list):
        return [leaf for part in value for leaf in _leaves(part)]
    if isinstance(value, dict):
        return [leaf for part in value.values() for leaf in _leaves(part)]
    return [value]


def _map(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(_map(part, change) for part in value)
    if isinstance(value, dict):
        return {name: _map(part, change) for name, part in value.items()}
    return change(value)


class JoinedPlant(nn.Module):
    """A plant, a function of the state (batch, n) and the input (batch, m), as a function of z = (x, u)."""

    def __init__(self, plant: Callable[[Tensor, Tensor], Tensor], states: int) -> None:
        super().__init__()
        self.plant, self.states = plant, states
        self.register_buffer("unit", torch.ones((), dtype=torch.float64))  # The network computes in float64.

    def forward(self, z: Tensor) -> Tensor:
        return self.plant(z[:, : self.states], z[:, self.states :])


class TaylorCoefficients(nn.Module):
    """(batch, states + inputs) -> (batch, states * (last - first + 1)): x_first, ..., x_last one after the other."""

    def __init__(self, plant: fx.GraphModule, states: int, first: int, last: int) -> None:
        """plant: the traced right-hand side, (batch, states + inputs) -> (batch, states)."""
        super().__init__()
        self.plant, self.states, self.first, self.last = plant, states, first, last
        self.register_buffer("unit", torch.ones((), dtype=torch.float64))  # The network computes in float64.

    def forward(self, z: Tensor) -> Tensor:
        solution: list[Coefficient] = [z[:, : self.states]]
        x = TimeSeries("x", lambda j: solution[j])
        u = TimeSeries("u", lambda j: z[:, self.states :] if j == 0 else None)
        f = _Interpreter(self.plant, self.states).run(x, u)
        for j in range(self.last):
            rate = f[j]
            solution.append(torch.zeros_like(solution[0]) if rate is None else rate / (j + 1))
        return torch.cat(solution[self.first : self.last + 1], -1)


def check_coefficients(plant: Callable[[Tensor], Tensor], found: TaylorCoefficients, z: Tensor) -> None:
    """Raise UnsupportedLayer unless, at these points, x_1 = f and each (j + 1) x_{j+1} is the derivative of x_j
    along f, as torch's forward differentiation computes it.

    Args:
        plant: f as a function of z = (x, u).
        found: the coefficients from x_1 on.
        z: (points, states + inputs).
    """
    n, orders = found.states, found.last

    def along(value: Callable[[Tensor], Tensor], order: int) -> Callable[[Tensor], Tensor]:
        return lambda x: torch.func.jvp(value, (x,), (plant(torch.cat([x, z[:, n:]], 1)),))[1] / order

    coefficients = found(z).reshape(len(z), orders, n)

    def value(x: Tensor) -> Tensor:
        return plant(torch.cat([x, z[:, n:]], 1))

    wanted: Callable[[Tensor], Tensor] = value
    for j in range(orders):
        one, other = coefficients[:, j], wanted(z[:, :n])
        size = 1e-6 * float(torch.maximum(one.abs(), other.abs()).max())
        if not bool(((one - other).abs() <= size + TINY).all()):
            raise UnsupportedLayer(
                f"the Taylor coefficient of order {j + 1} of the plant differs from torch's derivative, so "
                "nothing is proved. Does the plant return the same for the same arguments?"
            )
        wanted = along(wanted, j + 2)


class PartialDerivatives(nn.Module):
    """(batch, states + inputs) -> (batch, states * states): df/dx_1, ..., df/dx_n one after the other.

    df/dx_i is the first coefficient of f(x + t e_i, u).
    """

    def __init__(self, plant: fx.GraphModule, states: int) -> None:
        super().__init__()
        self.plant, self.states = plant, states
        self.register_buffer("unit", torch.ones((), dtype=torch.float64))

    def forward(self, z: Tensor) -> Tensor:
        x, u = z[:, : self.states], TimeSeries("u", lambda j: z[:, self.states :] if j == 0 else None)
        columns = []
        for i in range(self.states):
            start = torch.nn.functional.one_hot(torch.tensor(i), self.states).to(x).expand_as(x)
            line = TimeSeries("x", lambda j, start=start: (x, start)[j] if j < 2 else None)  # type: ignore[misc]
            column = _Interpreter(self.plant, self.states).run(line, u)[1]
            columns.append(torch.zeros_like(x) if column is None else column)
        return torch.cat(columns, -1)
