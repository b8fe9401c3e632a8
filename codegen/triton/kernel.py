"""What the printer hands to the compiler and to the plan: a kernel's source, its signature and how it is launched."""

from __future__ import annotations

from dataclasses import dataclass

from ...ir.dims import Dim


@dataclass(frozen=True)
class Argument:
    """One kernel argument in order: kind `operand` (a pointer), `counter` (a pointer to i32) or `size` (an i32).

    `name` is the operand's, counter's or symbol's; `type` is the signature's word; `aligned` promises a start (or a
    size) that 16 divides, which the plan must guard where it is not known.
    """

    name: str
    kind: str
    type: str
    aligned: bool


@dataclass(frozen=True)
class TritonKernel:
    """One printed launch.

    `source` defines the function `name`. The cubin takes the arguments in order and then two scratch pointers (null
    unless `Resources.scratch` says otherwise, which it does for kernels with `descriptors`). `grid` is the number of
    programs as a dimension over the symbols; a persistent kernel's is at most the number it was printed for. `notes`
    says what was decided that a reader would not expect, such as a dot without tensor cores. Its instructions take an `isa` of PTX at
    least, 0 that which the architecture takes anyway.
    """

    name: str
    source: str
    arguments: tuple[Argument, ...]
    grid: Dim
    warps: int
    stages: int
    clusters: int = 1
    descriptors: bool = False
    isa: int = 0
    notes: tuple[str, ...] = ()

    @property
    def signature(self) -> dict[str, str]:
        """Triton's signature: type words by parameter name, in order."""
        return {parameter(argument): argument.type for argument in self.arguments}

    @property
    def divisible(self) -> tuple[int, ...]:
        """Positions of the arguments that 16 divides."""
        return tuple(n for n, argument in enumerate(self.arguments) if argument.aligned)

    @property
    def operands(self) -> tuple[str, ...]:
        """Names of the buffers to pass, counters included, in order."""
        return tuple(argument.name for argument in self.arguments if argument.kind != "size")

    @property
    def sizes(self) -> tuple[str, ...]:
        """Names of the symbols to pass after the buffers, in order; each within `SCALAR_LIMIT`."""
        return tuple(argument.name for argument in self.arguments if argument.kind == "size")


def parameter(argument: Argument) -> str:
    """The name of an argument inside the kernel's source."""
    return f"size_{argument.name}" if argument.kind == "size" else f"{argument.name}_ptr"
