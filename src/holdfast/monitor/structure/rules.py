"""The effect of each torch operation on marks; an operation without a rule ends the reading.

A rule determines the axes of the result and what it depends on. It must hold for every number of rows, every
length and every value.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_flatten

from holdfast.monitor.structure.marks import Axis, Mark, Marked, raw

if TYPE_CHECKING:
    from holdfast.monitor.structure.structure import Reading

Rule = Callable[["Reading", Any, Any, Any], Any]
RULES: dict[str, Rule] = {}
EACH = """
abs sign sgn relu relu6 tanh sigmoid logsigmoid gelu silu elu selu celu mish leaky_relu softplus softsign
tanhshrink hardtanh hardsigmoid hardswish hardshrink softshrink threshold exp expm1 log log1p log2 sqrt
rsqrt square sin cos erf reciprocal floor ceil round trunc nan_to_num clamp clamp_min clamp_max clip pow
__pow__ __rpow__ maximum minimum atan eq ne lt le gt ge __eq__ __ne__ __lt__ __le__ __gt__ __ge__ isnan
isfinite logical_and logical_or logical_not __and__ __or__ __invert__ bitwise_and bitwise_or bitwise_not
where masked_fill remainder __mod__ floor_divide __floordiv__ fmod add sub mul div neg negative
true_divide multiply subtract divide __radd__ __rsub__ rsub __rmul__ __rdiv__ __add__ __sub__ __mul__
__truediv__ __rtruediv__ __neg__
"""


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def keep(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, rule))
        return rule

    return keep


@_rule(*EACH.split())
def _each(reading: "Reading", func: Any, args: Any, kwargs: Any) -> Any:
    """Elementwise operations."""
    reading.no_sizes(args, kwargs)
    tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
    reading.written |= kwargs.get("inplace", False) is not False or any(x is True for x in args)
    mark = Mark(reading.stage(tensors), reading.broadcast(tensors), _affine(func.__name__, args, kwargs))
    return reading.mark_value(reading.run(func, args, kwargs), mark)


def _affine(name: str, args: Any, kwargs: Any) -> bool:
    moving = [place for place, x in enumerate(args) if isinstance(x, Marked) and x.mark.stage != "constant"]
    if kwargs or not all(args[place].mark.affine for place in moving):
        return False
    if name in (
        "add",
        "sub",
        "neg",
        "negative",
        "subtract",
        "__radd__",
        "__rsub__",
        "rsub",
        "__add__",
        "__sub__",
        "__neg__",
    ):
        return True
    if name in ("mul", "multiply", "__rmul__", "__mul__"):
        return len(moving) <= 1
    return name in ("div", "divide", "true_divide", "__truediv__") and moving in ([], [0])


@_rule("to", "float", "double", "long", "int", "bool", "half", "bfloat16", "type_as", "type")
def _cast(reading: "Reading", func: Any, args: Any, kwargs: Any) -> Any:
    """Change of dtype or device; a tensor given as the example only provides these."""
    reading.no_sizes(args, kwargs)
    found = reading.run(func, args, kwargs)
    if not isinstance(args[0], Marked) or not isinstance(found, Tensor):
        return found
    mark, same = args[0].mark, found.dtype == args[0].raw.dtype
    return reading.mark_value(found, Mark(mark.stage, mark.axes, mark.affine and same, mark.plain and same))


@_rule("contiguous", "clone", "detach", "alias", "get data", "requires_grad_")
def _same(reading: "Reading", func: Any, args: Any, kwargs: Any) -> Any:
    return reading.mark_value(reading.run(func, args, kwargs), reading.first(args, kwargs).mark)


@_rule("dropout")
def _dropout(reading: "Reading", func: Any, args: Any, kwargs: Any) -> Any:
    given = dict(zip(("p", "training", "inplace"), args[1:], strict=False)) | kwargs
    if given.get("training", True) is not False:
        reading.end("drops out at random")
    return _same(reading, func, args, kwargs)


@_rule("linear", "matmul", "__matmul__", "mm")
def _linear(reading: "Reading", func: Any, args: Any, kwargs: Any) -> Any:
    if func.__name__ != "linear" and len(args) == 2 and all(isinstance(x, Marked) for x in args):
        return _product(reading, func, args, kwargs)
    x = reading.first(args, kwargs)
    reading.own(x, -1)
    weight = args[1] if len(args) > 1 else kwargs.get("weight", kwargs.get("other"))
    biases = [x for x in (*args[2:], kwargs.get("bias")) if isinstance(x, Tensor)]
    if not isinstance(weight, Tensor) or weight.dim() != 2 or any(bias.dim() > 1 for bias in biases):
        reading.end("multiplies by something that is not an unmarked matrix")
    return reading.mark_value(reading.run(func, args, kwargs), Mark(x.mark.stage, x.mark.axes, x.mark.affine))


@_rule("bmm")
def _product(reading: "Reading", func: Any, args: Any, kwargs: Any) -> Any:
    """Batched matrix products over fixed axes."""
    one, other = args
    axes = one.mark.axes if isinstance(one, Marked) else ()
    if not isinstance(other, Marked) or other.mark.axes != axes or len(axes) < 3 or axes[-2:] != (None, None):
        reading.end("multiplies over rows or places")
    return reading.mark_value(reading.run(func, args, kwargs), Mark(reading.stage(args), axes))


@_rule("max", "min", "topk", "sort")
def _best(reading: "Reading", func: Any, args: Any, kwargs: Any) -> Any:
    """Values and indices along a fixed axis."""
    x, place = reading.first(args, kwargs), 2 if func.__name__ == "topk" else 1
    (dim,) = reading.own(x, kwargs.get("dim", args[place] if len(args) > place else None))
    found = reading.run(func, args, kwargs)
    axes = x.mark.axes if found[0].dim() == x.raw.dim() else (*x.mark.axes[:dim], *x.mark.axes[dim + 1 :])
    return type(found)([reading.mark_value(part, Mark(x.mark.stage, axes)) for part in found])


@_rule("embedding")
def _embedding(reading: "Reading", func: Any, args: Any, kwargs: Any) -> Any:
    x = reading.first(args, kwargs)
    if len(args) != 2 or kwargs.get("max_norm") is not None:
        reading.end("its embedding writes into its table")
    return reading.mark_value(reading.run(func, args, kwargs), Mark(x.mark.stage, (*x.mark.axes, None)))


@_rule("one_hot")
def _one_hot(reading: "Reading", func: Any, args: Any, kwargs: Any) -> Any:
    x, classes = reading.first(args, kwargs), kwargs.get("num_classes", args[1] if len(args) > 1 else -1)
    if not isinstance(classes, int) or classes < 1:
        reading.end("counts its classes in the batch")
    return reading.mark_value(reading.run(func, args, kwargs), Mark(x.mark.stage, (*x.mark.axes, None)))


@_rule("layer_norm")
def _layer_norm(reading: "Reading", func: Any, args: Any, kwargs: Any) -> Any:
    x = reading.first(args, kwargs)
    shape = args[1] if len(args) > 1 else kwargs["normalized_shape"]
    reading.own(x, [-1 - place for place in range(len(shape))])
    return reading.mark_value(reading.run(func, args, kwargs), Mark(x.mark.stage, x.mark.axes))


@_rule("batch_norm")
def _batch_norm(reading: "Reading", func: Any, args: Any, kwargs: Any) -> Any:
    x = reading.first(args, kwargs)
    if len(args) != 3 or args[1] is None or args[2] is None or kwargs.get("training", False) is not False:
        reading.end("normalises over the batch")
    reading.own(x, 1)
    return reading.mark_value(reading.run(func, args, kwargs), Mark(x.mark.stage, x.mark.axes, x.mark.affine))


@_rule("softmax", "log_softmax", "softmin", "normalize")
def _along(reading: "Reading", func: Any, args: Any, kwargs: Any) -> Any:
    x = reading.first(args, kwargs)
    place = 2 if func is functional.normalize else 1
    default = 1 if func is functional.normalize else None
    reading.own(x, kwargs.get("dim", args[place] if len(args) > place else default))
    return reading.mark_value(reading.run(func, args, kwargs), Mark(x.mark.stage, x.mark.axes))


@_rule("sum", "mean", "amax", "amin", "logsumexp", "any", "all")
def _gather(reading: "Reading", func: Any, args: Any, kwargs: Any) -> Any:
    x = reading.first(args, kwargs)
    dims = reading.own(x, kwargs.get("dim", args[1] if len(args) > 1 else None))
    keeps = kwargs.get("keepdim", args[2] if len(args) > 2 else False)
    axes = (
        x.mark.axes if keeps else tuple(axis for place, axis in enumerate(x.mark.axes) if place not in dims)
    )
    same = x.mark.affine and func.__name__ in ("sum", "mean") and not set(kwargs) - {"dim", "keepdim"}
    return reading.mark_value(reading.run(func, args, kwargs), Mark(x.mark.stage, axes, same))


@_rule(
    "transpose", "permute", "movedim", "moveaxis", "swapaxes", "swapdims", "t", "unsqueeze", "get T", "get mT"
)
def _turn(reading: "Reading", func: Any, args: Any, kwargs: Any) -> Any:
    """Permutations of axes, traced on a tensor whose axes have distinct sizes."""
    x = reading.first(args, kwargs)
    reading.no_sizes(args, kwargs)
    places = func(torch.empty(tuple(range(2, 2 + x.raw.dim())), device="meta"), *args[1:], **kwargs).shape
    axes = tuple(x.mark.axes[size - 2] if size > 1 else None for size in places)
    own = [size for size in places if size > 1 and x.mark.axes[size - 2] is None]
    plain = x.mark.plain and own == sorted(own) and len(places) == x.raw.dim()
    return reading.mark_value(reading.run(func, args, kwargs), Mark(x.mark.stage, axes, x.mark.affine, plain))


@_rule("squeeze", "flatten", "unflatten")
def _fold(reading: "Reading", func: Any, args: Any, kwargs: Any) -> Any:
    """Reshapes of fixed axes only: a batch of one must keep its axis."""
    x, count = reading.first(args, kwargs), len(args[0].mark.axes)
    reading.no_sizes(args, kwargs)
    if func.__name__ == "flatten":
        given = dict(zip(("start_dim", "end_dim"), args[1:], strict=False)) | kwargs
        begin, last = given.get("start_dim", 0) % count, given.get("end_dim", -1) % count
        if last <= begin:
            return reading.mark_value(reading.run(func, args, kwargs), x.mark)
        reading.own(x, list(range(begin, last + 1)))
        axes = (*x.mark.axes[:begin], None, *x.mark.axes[last + 1 :])
    elif func.__name__ == "squeeze":
        (place,) = reading.own(x, kwargs.get("dim", args[1] if len(args) > 1 else None))
        axes = x.mark.axes if x.raw.shape[place] != 1 else (*x.mark.axes[:place], *x.mark.axes[place + 1 :])
    else:
        (place,) = reading.own(x, kwargs.get("dim", args[1] if len(args) > 1 else None))
        sizes = kwargs.get("sizes", args[2] if len(args) > 2 else ())
        axes = (*x.mark.axes[:place], *(None for _ in sizes), *x.mark.axes[place + 1 :])
    return reading.mark_value(reading.run(func, args, kwargs), Mark(x.mark.stage, axes, x.mark.affine))


@_rule("view", "reshape")
def _view(reading: "Reading", func: Any, args: Any, kwargs: Any) -> Any:
    """Views with open axes first, given by their symbolic sizes, and fixed axes after them."""
    x = reading.first(args, kwargs)
    wanted = args[1] if len(args) == 2 and isinstance(args[1], tuple | list) else args[1:]
    named = [size.node.axis for size in wanted if isinstance(size, torch.SymInt)]
    head, rest = wanted[: len(named)], wanted[len(named) :]
    whole = [axis for axis in x.mark.axes if axis]
    if kwargs or not all(isinstance(s, torch.SymInt) for s in head) or not all(type(s) is int for s in rest):
        reading.end("views its axes as others")
    if named != whole or list(x.mark.axes[: len(whole)]) != whole:
        reading.end("views its axes as others")
    return reading.mark_value(
        reading.run(func, args, kwargs), Mark(x.mark.stage, (*named, *(None for _ in rest)), x.mark.affine)
    )


@_rule("cat", "concat", "concatenate", "stack")
def _join(reading: "Reading", func: Any, args: Any, kwargs: Any) -> Any:
    tensors, dim = args[0], kwargs.get("dim", args[1] if len(args) > 1 else 0)
    if (
        not isinstance(tensors, tuple | list)
        or not all(isinstance(x, Marked) for x in tensors)
        or set(kwargs) - {"dim"}
    ):
        reading.end("joins elements with something else")
    axes = tensors[0].mark.axes
    if any(x.mark.axes != axes for x in tensors):
        reading.end("mixes its axes")
    if func.__name__ == "stack":
        place = dim % (len(axes) + 1)
        axes = (*axes[:place], None, *axes[place:])
    else:
        reading.own(tensors[0], dim)
    affine = all(x.mark.affine or x.mark.stage == "constant" for x in tensors)
    return reading.mark_value(reading.run(func, args, kwargs), Mark(reading.stage(tensors), axes, affine))


@_rule("chunk", "split", "unbind")
def _part(reading: "Reading", func: Any, args: Any, kwargs: Any) -> Any:
    x = reading.first(args, kwargs)
    place = 1 if func.__name__ == "unbind" else 2
    (dim,) = reading.own(x, kwargs.get("dim", args[place] if len(args) > place else 0))
    reading.no_sizes(args, kwargs)
    axes = x.mark.axes if place == 2 else (*x.mark.axes[:dim], *x.mark.axes[dim + 1 :])
    return tuple(
        reading.mark_value(part, Mark(x.mark.stage, axes, x.mark.affine))
        for part in reading.run(func, args, kwargs)
    )


@_rule("__getitem__")
def _item(reading: "Reading", func: Any, args: Any, kwargs: Any) -> Any:
    table, index = args
    if (
        isinstance(index, Marked)
        and not isinstance(table, Marked)
        and index.raw.dtype in (torch.int64, torch.int32)
    ):
        axes: tuple[Axis, ...] = (*index.mark.axes, *(None for _ in table.shape[1:]))
        return reading.mark_value(table[index.raw], Mark(index.mark.stage, axes))
    if not isinstance(table, Marked):
        reading.end("picks by elements")
    return _index_rule(reading, table, index if isinstance(index, tuple) else (index,))


def _index_rule(reading: "Reading", x: Marked, index: tuple[Any, ...]) -> Any:
    """Indexing: all rows; all time steps, or the last one of the layer's outputs; anything on fixed axes."""
    count = sum(i is not None and i is not Ellipsis for i in index)
    if count > len(x.mark.axes) or sum(i is Ellipsis for i in index) > 1:
        reading.end("picks from axes that are not there")
    fill = (slice(None),) * (len(x.mark.axes) - count)
    at = next((place for place, i in enumerate(index) if i is Ellipsis), len(index))
    index = (*index[:at], *fill, *index[at + 1 :])
    axes: list[Axis] = []
    stage, left = x.mark.stage, list(x.mark.axes)
    for i in index:
        if i is None:
            axes.append(None)
            continue
        axis, whole = left.pop(0), isinstance(i, slice) and i == slice(None)
        if isinstance(i, slice):
            if not all(part is None or type(part) is int for part in (i.start, i.stop, i.step)):
                reading.end("computes with a size")
        elif type(i) is not int:
            reading.end("picks by a tensor")
        if axis is None or whole:
            axes += [axis] if isinstance(i, slice) else []
        elif axis == "time" and stage == "outputs" and (i == slice(-1, None) or (type(i) is int and i == -1)):
            stage = "state"
            axes += [None] if isinstance(i, slice) else []
        else:
            reading.end(f"picks from the {axis}")
    return reading.mark_value(x.raw[index], Mark(stage, tuple(axes), x.mark.affine))


@_rule("select")
def _select(reading: "Reading", func: Any, args: Any, kwargs: Any) -> Any:
    x, given = reading.first(args, kwargs), dict(zip(("dim", "index"), args[1:], strict=False)) | kwargs
    if type(given.get("dim")) is not int:
        reading.end("picks from axes that are not there")
    return _index_rule(
        reading, x, (*(slice(None) for _ in range(given["dim"] % len(x.mark.axes))), given["index"])
    )


# ---- constants and sizes


@_rule("zeros", "ones", "full", "new_zeros", "new_ones")
def _fill_rule(reading: "Reading", func: Any, args: Any, kwargs: Any) -> Any:
    """Constant tensors, in a shape that may contain open axes."""
    given = args[1:] if func.__name__.startswith("new_") else args
    if func.__name__ == "full":
        given, filling = args[:1], args[1:]
        reading.no_sizes(filling, {key: value for key, value in kwargs.items() if key != "size"})
        if any(isinstance(x, Tensor) for x in (*filling, *kwargs.values())):
            reading.end("fills with a tensor")
    sizes = kwargs.get("size", given[0] if len(given) == 1 and isinstance(given[0], tuple | list) else given)
    axes = tuple(s.node.axis if isinstance(s, torch.SymInt) else None for s in sizes)
    made = reading.run(func, args, kwargs)
    return reading.mark_value(made, Mark("constant", axes)) if any(axes) else made


@_rule("zeros_like", "ones_like")
def _like(reading: "Reading", func: Any, args: Any, kwargs: Any) -> Any:
    return reading.mark_value(
        reading.run(func, args, kwargs), Mark("constant", reading.first(args, kwargs).mark.axes)
    )


@_rule("expand", "repeat")
def _expand(reading: "Reading", func: Any, args: Any, kwargs: Any) -> Any:
    """Constants repeated for all rows: an axis of size one takes an open size."""
    x, sizes = args[0], args[1] if len(args) == 2 and isinstance(args[1], tuple | list) else args[1:]
    mark = x.mark if isinstance(x, Marked) else Mark("constant", tuple(None for _ in x.shape))
    if mark.stage != "constant" or kwargs:
        reading.end("repeats elements")
    known: list[Any] = [
        *((None, 1) for _ in sizes[len(mark.axes) :]),
        *zip(mark.axes, raw(x).shape, strict=True),
    ]
    axes: list[Axis] = []
    for size, (axis, length) in zip(sizes, known, strict=True):
        name: Axis = size.node.axis if isinstance(size, torch.SymInt) else None
        keeps = name is None and size == (1 if func.__name__ == "repeat" else -1)
        if (name and (axis or length != 1)) or (axis and not keeps):
            reading.end("repeats along rows or places")
        axes.append(name or axis)
    return reading.mark_value(reading.run(func, args, kwargs), Mark("constant", tuple(axes)))


@_rule("get shape", "size")
def _shape(reading: "Reading", func: Any, args: Any, kwargs: Any) -> Any:
    x = reading.first(args, kwargs)
    sizes: Any = (
        reading.sizes[axis] if axis else size for axis, size in zip(x.mark.axes, x.raw.shape, strict=True)
    )
    shape = torch.Size(sizes)
    place = kwargs.get("dim", args[1] if len(args) > 1 else None)
    return shape if place is None else shape[place]


@_rule(
    "dim",
    "get ndim",
    "get dtype",
    "get device",
    "get is_cuda",
    "get layout",
    "get requires_grad",
    "is_floating_point",
    "get_device",
)
def _constant_rule(reading: "Reading", func: Any, args: Any, kwargs: Any) -> Any:
    """Attributes that are equal for every batch."""
    return reading.run(func, args, kwargs)
