"""Rules of what ONNX Runtime's optimizer fuses into one op: products and convolutions with their activation, biased GELUs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from .....ir.errors import UnsupportedError
from .....ir.graph import Value
from ..context import Node, cast, rule
from .contraction import gemm, product
from .movement import transpose
from .quantization import MICROSOFT
from .window import convolve

Activation: TypeAlias = Callable[[Node, Value, list[float]], Value]

# By ONNX's names: how many numbers an activation may take, with ONNX Runtime's values for those left out, and what it computes.
ACTIVATIONS: dict[str, tuple[tuple[float, ...], Activation]] = {
    "Relu": ((), lambda n, x, _: n.b.relu(x)),
    "Tanh": ((), lambda n, x, _: n.b.tanh(x)),
    "Sigmoid": ((), lambda n, x, _: n.b.sigmoid(x)),
    "Softplus": ((), lambda n, x, _: n.b.softplus(x)),
    "Softsign": ((), lambda n, x, _: n.b.softsign(x)),
    "HardSwish": ((), lambda n, x, _: n.b.mul(x, n.b.hard_sigmoid(x, alpha=1.0 / 6.0, beta=0.5))),
    "LeakyRelu": ((0.01,), lambda n, x, p: n.b.leaky_relu(x, alpha=p[0])),
    "Elu": ((1.0,), lambda n, x, p: n.b.elu(x, alpha=p[0])),
    "ThresholdedRelu": ((1.0,), lambda n, x, p: n.b.thresholded_relu(x, alpha=p[0])),
    "HardSigmoid": ((0.2, 0.5), lambda n, x, p: n.b.hard_sigmoid(x, alpha=p[0], beta=p[1])),
    "Clip": ((-3.4028234663852886e38, 3.4028234663852886e38), lambda n, x, p: n.b.clip(x, p[0], p[1])),
}


def _activated(n: Node, x: Value, given: tuple[float, ...]) -> Value:
    """What the node's activation makes of x; `given` are its numbers."""
    name = n.attr_string("activation")
    if not name:
        return x
    if name not in ACTIVATIONS:
        raise UnsupportedError(f"attribute 'activation' is {name!r}", hint=f"supported are {', '.join(ACTIVATIONS)}")
    defaults, compute = ACTIVATIONS[name]
    return compute(n, x, [*given[: len(defaults)], *defaults[len(given) :]])


@rule("FusedConv", domain=MICROSOFT)
def _conv(n: Node) -> Value:
    y = convolve(n, n.x(0), n.x(1), n.optional(2))
    if n.given(3):
        y = n.b.add(y, n.x(3))
    return _activated(n, y, n.attr_floats("activation_params") or ())


@rule("FusedGemm", domain=MICROSOFT)
def _gemm(n: Node) -> Value:
    names = [name for name in ("activation_alpha", "activation_beta", "activation_gamma") if n.has(name)]
    return _activated(n, gemm(n), tuple(n.attr_float(name) for name in names))


@rule("FusedMatMul", "TransposeMatMul", domain=MICROSOFT)
def _matmul(n: Node) -> Value:
    a, b = (_arranged(n, n.x(position), letter) for position, letter in ((0, "A"), (1, "B")))
    y = cast(n, product(n, a, b), a.dtype)
    alpha = n.attr_float("alpha", 1.0)
    return y if alpha == 1.0 else n.b.mul(y, alpha)


def _arranged(n: Node, x: Value, letter: str) -> Value:
    """An operand as [batch ..., rows, columns]; a vector is taken as it is."""
    rank = x.type.rank
    order = list(range(rank))
    if rank < 2:
        return x
    if n.attr_flag(f"transBatch{letter}"):
        # The first axis stands behind those of the batch.
        order = [*order[1:-1], 0, order[-1]]
    if n.attr_flag(f"trans{letter}"):
        order[-2:] = reversed(order[-2:])
    return transpose(n, x, tuple(order))


# --- GELUs ------------------------------------------------------------------------------------------------------------


def _biased(n: Node) -> Value:
    """The first operand plus the bias behind it."""
    if not n.given(1):
        return n.x(0)
    bias = n.x(1)
    if bias.type.rank != 1:
        raise n.fail(f"bias has rank {bias.type.rank}, expected 1")
    result: Value = n.b.add(n.x(0), bias)
    return result


@rule("Gelu", "BiasGelu", domain=MICROSOFT)
def _gelu(n: Node) -> Value:
    result: Value = n.b.gelu(_biased(n))
    return result


@rule("FastGelu", domain=MICROSOFT)
def _fast_gelu(n: Node) -> Value:
    result: Value = n.b.gelu(_biased(n), approximate="tanh")
    return result


@rule("QuickGelu", domain=MICROSOFT)
def _quick_gelu(n: Node) -> Value:
    result: Value = n.b.silu(n.x(), alpha=n.attr_float("alpha", 1.702))
    return result
