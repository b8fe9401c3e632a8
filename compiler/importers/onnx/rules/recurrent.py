"""Rules of RNN, GRU, LSTM and its dynamically quantized form: unrolled over a known sequence length, a loop over others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .....ir.dims import Dim
from .....ir.errors import UnsupportedError
from .....ir.graph import Value
from .....ir.types import boolean, i64
from ..context import Node, cast, rule
from .control import looped, turned
from .indexing import checked
from .movement import slice_axis, transpose
from .quantization import MICROSOFT, is_single
from .quantized_products import dynamic_product
from .shape import unsqueeze

STEPS = 1024
Activation = Callable[[Value], Value]
# The simple activations, by ONNX's names in lower case, and the parameters of the others with their defaults.
SIMPLE = {"relu": "relu", "tanh": "tanh", "sigmoid": "sigmoid", "softsign": "softsign", "softplus": "softplus"}
WITH_ALPHA = {"leakyrelu": ("leaky_relu", 0.01), "elu": ("elu", 1.0), "thresholdedrelu": ("thresholded_relu", 1.0)}


@dataclass(frozen=True)
class _Direction:
    """The weights of one direction, each gate's rows one after another."""

    w: Value
    r: Value
    w_bias: Value | None
    r_bias: Value | None
    initial: Value
    initial_cell: Value | None
    peepholes: Value | None
    activations: Sequence[Activation]
    backwards: bool


class _Recurrent:
    """One recurrent node: its operands put into one layout, its outputs put back."""

    def __init__(self, n: Node, gates: int, defaults: tuple[str, ...]) -> None:
        self.n, self.gates = n, gates
        self.batch_first = n.attr_flag("layout")
        self.x = transpose(n, n.x(0), (1, 0, 2)) if self.batch_first else n.x(0)
        if self.x.type.rank != 3 or n.x(1).type.rank != 3:
            raise n.fail(f"got {n.x(0).type} and {n.x(1).type}, expected rank 3")
        self.steps, self.batch = self.x.shape[0], self.x.shape[1]
        directions = n.x(1).shape[0]
        if not isinstance(directions, int):
            raise UnsupportedError(f"weights for {directions} directions, expected a known number", hint="fix that size at import (shapes)")
        self.directions = directions
        self.hidden = self.hidden_size()
        self.clip = n.attr_float("clip")
        self.activations = self._activations(n.attr_strings("activations") or defaults * self.directions, len(defaults))
        kind = n.attr_string("direction", "forward")
        if kind not in ("forward", "reverse", "bidirectional") or self.directions != 1 + (kind == "bidirectional"):
            raise n.fail(f"direction {kind!r} does not fit weights for {self.directions}")
        self.backwards = [kind == "reverse", True][: self.directions]

    def _activations(self, names: tuple[str, ...], each: int) -> list[list[Activation]]:
        n = self.n
        if len(names) != each * self.directions:
            raise n.fail(f"got {len(names)} activations, expected {each * self.directions}")
        alphas, betas = list(n.attr_floats("activation_alpha") or ()), list(n.attr_floats("activation_beta") or ())
        flat = [self._activation(name.lower(), alphas, betas) for name in names]
        return [flat[k * each : (k + 1) * each] for k in range(self.directions)]

    def _activation(self, name: str, alphas: list[float], betas: list[float]) -> Activation:
        b = self.n.b
        if name in SIMPLE:
            return lambda x: getattr(b, SIMPLE[name])(x)
        if name in WITH_ALPHA:
            op, default = WITH_ALPHA[name]
            alpha = alphas.pop(0) if alphas else default
            return lambda x: getattr(b, op)(x, alpha=alpha)
        if name in ("hardsigmoid", "affine", "scaledtanh"):
            first = alphas.pop(0) if alphas else {"hardsigmoid": 0.2}.get(name, 1.0)
            second = betas.pop(0) if betas else {"hardsigmoid": 0.5, "affine": 0.0}.get(name, 1.0)
            if name == "hardsigmoid":
                return lambda x: b.hard_sigmoid(x, alpha=first, beta=second)
            if name == "affine":
                return lambda x: b.add(b.mul(x, first), second)
            return lambda x: b.mul(b.tanh(b.mul(x, second)), first)
        raise self.n.fail(f"activation {name!r} is not known")

    def hidden_size(self) -> Dim:
        """The size of the hidden state: a column of R for each element."""
        return self.n.x(2).shape[2]

    def part(self, value: Value, direction: int) -> Value:
        """One direction of an operand."""
        result: Value = self.n.b.take(value, self.n.b.scalar(direction, i64), axis=0)
        return result

    def gate(self, value: Value, gate: int, count: Dim | None = None, axis: int = 0) -> Value:
        """One gate's block of stacked ones."""
        size = self.hidden if count is None else count
        return slice_axis(self.n, value, axis, size * gate, size)

    def direction(self, k: int) -> _Direction:
        n, b = self.n, self.n.b
        bias = self.part(n.x(3), k) if n.given(3) else None
        both = self.hidden * self.gates
        shape = (self.batch, self.hidden)
        zero: Value = b.full(shape=shape, value=0.0, dtype=self.x.dtype)

        def initial(position: int) -> Value:
            if not n.given(position):
                return zero
            value = transpose(n, n.x(position), (1, 0, 2)) if self.batch_first else n.x(position)
            return self.part(value, k)

        return _Direction(
            w=self.part(n.x(1), k),
            r=self.part(n.x(2), k),
            w_bias=None if bias is None else slice_axis(n, bias, 0, 0, both),
            r_bias=None if bias is None else slice_axis(n, bias, 0, both, both),
            initial=initial(5),
            initial_cell=initial(6),
            peepholes=self.part(n.x(7), k) if n.given(7) else None,
            activations=self.activations[k],
            backwards=self.backwards[k],
        )

    def clipped(self, x: Value) -> Value:
        """Pre-activations within the node's clip."""
        if self.clip <= 0:
            return x
        result: Value = self.n.b.clip(x, self.n.b.scalar(-self.clip, x.dtype), self.n.b.scalar(self.clip, x.dtype))
        return result

    def linear(self, x: Value, w: Value, bias: Value | None) -> Value:
        """x w^T + bias."""
        product: Value = self.n.b.matmul(x, w, transpose_b=True)
        return product if bias is None else self.n.b.add(product, bias)

    def read(self, lengths: Value | None) -> Value:
        """The input as it is multiplied."""
        return self.x

    def run(self, step: Callable[[_Direction, Value, list[Value]], list[Value]], states: int) -> list[Value]:
        """All directions: Y, and the last of each state."""
        rows: list[Value] = []
        lasts: list[list[Value]] = [[] for _ in range(states)]
        for k in range(self.directions):
            outputs, final = self._run_direction(self.direction(k), step, states)
            rows.append(outputs)
            for collected, last in zip(lasts, final, strict=True):
                collected.append(unsqueeze(self.n, last, (0,)))
        y = self._concat([unsqueeze(self.n, row, (1,)) for row in rows], 1)
        ends = [self._concat(parts, 0) for parts in lasts]
        if self.batch_first:
            y, ends = transpose(self.n, y, (2, 0, 1, 3)), [transpose(self.n, end, (1, 0, 2)) for end in ends]
        return [y, *ends]

    def _concat(self, parts: list[Value], axis: int) -> Value:
        return self.n.b.concat(*parts, axis=axis) if len(parts) > 1 else parts[0]

    def _run_direction(
        self, d: _Direction, step: Callable[[_Direction, Value, list[Value]], list[Value]], states: int
    ) -> tuple[Value, list[Value]]:
        n, b = self.n, self.n.b
        state = [d.initial] if states == 1 else [d.initial, d.initial_cell or d.initial]
        lengths = checked(n, cast(n, n.x(4), i64), self.steps + 1, negative=False) if n.given(4) else None
        # The input's share of every step is one product; only the recurrent share is sequential.
        projected = self.linear(self.read(lengths), d.w, d.w_bias)

        def at(time: Value, state: list[Value]) -> tuple[Value, list[Value]]:
            """The output of one time, and the states after it."""
            following = step(d, b.take(projected, time, axis=0), state)
            if lengths is None:
                return following[0], following
            alive = b.reshape(b.gt(lengths, time), shape=(self.batch, 1))
            shown = b.where(alive, following[0], b.scalar(0.0, self.x.dtype))
            return shown, [b.where(alive, new, old) for new, old in zip(following, state, strict=True)]

        outputs: list[Value] = []
        if isinstance(self.steps, int) and self.steps <= STEPS:
            outputs = [d.initial] * self.steps
            for trip in range(self.steps):
                time = self.steps - 1 - trip if d.backwards else trip
                outputs[time], state = at(b.scalar(time, i64), state)
            rows = self._concat([unsqueeze(n, row, (0,)) for row in outputs], 0) if outputs else None
        else:
            rows, *state = self._loop(at, state, d.backwards)
        if lengths is not None or not isinstance(self.steps, int) or not self.steps:
            # A sequence of no steps ends in zeros, not in its initial state: so ONNX Runtime reads the standard.
            none = b.le(b.dim(value=self.steps), 0) if lengths is None else b.reshape(b.le(lengths, 0), shape=(self.batch, 1))
            state = [b.where(none, b.scalar(0.0, self.x.dtype), last) for last in state]
        return b.full(shape=(0, self.batch, self.hidden), value=0.0, dtype=self.x.dtype) if rows is None else rows, state

    def _loop(self, at: Callable[[Value, list[Value]], tuple[Value, list[Value]]], state: list[Value], backwards: bool) -> list[Value]:
        """All outputs, and the states after as many steps as the data have."""
        n, b = self.n, self.n.b

        def build(values: list[Value]) -> list[Value]:
            place, true, *held = values
            row, after = at(b.sub(b.dim(value=self.steps - 1), place) if backwards else place, held)
            return [true, *after, row]

        *last, rows = looped(n, b.dim(value=self.steps), b.scalar(True, boolean), state, build)
        return [turned(n, rows, 0, int(backwards)), *last]


@rule("RNN")
def _rnn(n: Node) -> list[Value]:
    node = _Recurrent(n, 1, ("Tanh",))

    def step(d: _Direction, x: Value, state: list[Value]) -> list[Value]:
        total = n.b.add(x, node.linear(state[0], d.r, d.r_bias))
        return [d.activations[0](node.clipped(total))]

    return node.run(step, 1)


@rule("GRU")
def _gru(n: Node) -> list[Value]:
    node = _Recurrent(n, 3, ("Sigmoid", "Tanh"))
    before_reset = n.attr_flag("linear_before_reset")

    def step(d: _Direction, x: Value, state: list[Value]) -> list[Value]:
        hidden = state[0]
        blocks = [(node.gate(x, k, axis=1), node.gate(d.r, k), None if d.r_bias is None else node.gate(d.r_bias, k)) for k in range(3)]
        update, reset = (d.activations[0](node.clipped(n.b.add(part, node.linear(hidden, r, bias)))) for part, r, bias in blocks[:2])
        part, r, bias = blocks[2]
        recurrent = n.b.mul(reset, node.linear(hidden, r, bias)) if before_reset else node.linear(n.b.mul(reset, hidden), r, bias)
        candidate = d.activations[1](node.clipped(n.b.add(part, recurrent)))
        return [n.b.add(n.b.mul(n.b.sub(n.b.scalar(1.0, hidden.dtype), update), candidate), n.b.mul(update, hidden))]

    return node.run(step, 1)


class _DynamicallyQuantized(_Recurrent):
    """An LSTM whose weights are codes, input rows first, and whose operands are quantized by their own range at each product."""

    def __init__(self, n: Node, gates: int, defaults: tuple[str, ...]) -> None:
        super().__init__(n, gates, defaults)
        self.parameters: dict[Value, tuple[Value, Value | None]] = {}

    def hidden_size(self) -> Dim:
        """A row of R for each element: it is stored transposed."""
        return self.n.x(2).shape[1]

    def direction(self, k: int) -> _Direction:
        found = super().direction(k)
        for weight, position in ((found.w, 8), (found.r, 10)):
            scale, zero = self._own(self.n.x(position), k), self.n.optional(position + 1)
            self.parameters[weight] = scale, None if zero is None else self._own(zero, k)
        return found

    def _own(self, parameter: Value, k: int) -> Value:
        """The direction's own scale or zero point: one for all directions, or one row for each."""
        return parameter if is_single(parameter) else self.part(parameter, k)

    def read(self, lengths: Value | None) -> Value:
        """The input, 0 beyond the longest sequence: what lies there is no part of the range that is quantized."""
        if lengths is None:
            return self.x
        b = self.n.b
        times = b.reshape(b.iota(shape=(self.steps,), axis=0, dtype=i64), shape=(self.steps, 1, 1))
        alive = b.lt(times, b.reduce_max(lengths, axes=(0,), keepdims=False))
        result: Value = b.where(alive, self.x, b.scalar(0.0, self.x.dtype))
        return result

    def linear(self, x: Value, w: Value, bias: Value | None) -> Value:
        """x w + bias, the product in integers."""
        return dynamic_product(self.n, x, w, *self.parameters[w], bias)


@rule("LSTM")
def _lstm(n: Node) -> list[Value]:
    return _long_short(n, _Recurrent(n, 4, ("Sigmoid", "Tanh", "Tanh")))


@rule("DynamicQuantizeLSTM", domain=MICROSOFT)
def _dynamic_lstm(n: Node) -> list[Value]:
    return _long_short(n, _DynamicallyQuantized(n, 4, ("Sigmoid", "Tanh", "Tanh")))


def _long_short(n: Node, node: _Recurrent) -> list[Value]:
    coupled = n.attr_flag("input_forget")

    def step(d: _Direction, x: Value, state: list[Value]) -> list[Value]:
        hidden, cell = state
        total = n.b.add(x, node.linear(hidden, d.r, d.r_bias))
        into, out, forget, new = (node.gate(total, k, axis=1) for k in range(4))

        def peeped(gate: Value, k: int, source: Value) -> Value:
            if d.peepholes is None:
                return gate
            peeped_gate: Value = n.b.add(gate, n.b.mul(node.gate(d.peepholes, k), source))
            return peeped_gate

        f, g, h = d.activations
        opened = f(node.clipped(peeped(into, 0, cell)))
        kept = n.b.sub(n.b.scalar(1.0, cell.dtype), opened) if coupled else f(node.clipped(peeped(forget, 2, cell)))
        following = n.b.add(n.b.mul(kept, cell), n.b.mul(opened, g(node.clipped(new))))
        shown = f(node.clipped(peeped(out, 1, following)))
        return [n.b.mul(shown, h(following)), following]

    return node.run(step, 2)
