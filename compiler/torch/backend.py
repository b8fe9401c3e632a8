"""`torch.compile(model, backend="ourcc")`: AOTAutograd's graphs through the pipeline, parameters frozen while that is safe."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...ir import dims
from ...ir.errors import EngineError, IndexRangeError, InputError, Source, UnsupportedError, UsageError, ZeroDivisorError
from ...ir.spelling import nearest
from ...runtime.contents import Contract
from ...runtime.engine import Engine
from ..contract import TRACED, SourceOp, contract_of, enforce, fallback_row, refuse_unsupported, source_ops, unmet, widened_again
from ..engines.recorded import IN_TF32
from ..importers.torch.decompositions import decompositions
from ..importers.torch.fallback import callback, with_strides
from ..importers.torch.imported import Fallback, Imported, Result
from ..importers.torch.tensors import tensor_of
from ..importers.torch.views import Root
from ..importers.torch.walk import import_graph
from ..importers.torch.whole import left
from ..options import BuildOptions, build_options
from ..targets.target import Here, Target
from .agreeing import guard_equal_sizes
from .breaks import Break, break_of, broken_contract
from .devices import devices_of, expect_writable, on_device, with_target
from .mutations import WrittenTensors, overwrite
from .sharing import FrozenOnGpu, KeptEngine, SharedProgram, Watched, admit_ones, counts_writes, forget_values, kept_engines, packed_weights
from .telling import in_users_words, long_build, may_leave, names_of, tell_calls, tell_left, tell_notes, tell_refused, tell_workload

if TYPE_CHECKING:
    from ..pipeline import Simplified

REPACKS = 4
"""Parameters that change more often than this are read where they lie from then on."""
PARAMETER_SETS = 4
"""Modules of one graph that may be called in turn, each with its packed parameters."""
MODES: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "reduce-overhead": {},
    "max-autotune": {"tune": 16},
    "max-autotune-no-cudagraphs": {"tune": 16, "graphs": False},
}
"""What the modes of torch.compile ask for, in our options."""


def ourcc(graph_module: Any, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, mode: str | None = None) -> Any:
    """The Dynamo backend: compiles inference, forward and backward graphs; `options` are those of `ourcc.build`.

    What cannot be compiled torch runs, and `ourcc.explain` says why. What eager refuses, a compiled program refuses with torch's own
    words, with one exception: where torch merely has no CPU kernel for a dtype ("... not implemented for 'Int'"), the answer may be
    computed, by torch's own decomposition and types, as Inductor does. `mode` is torch's: "max-autotune" measures schedules,
    "reduce-overhead" changes nothing, since a plan has no overhead of Python's to reduce.

    Where gradients are off, parameters are folded and packed, and packed anew when torch's version counter or their place
    says that they changed. Writes through `parameter.data` (`p.data.add_(1)`) move neither, so nobody can see them: with
    `options={"freeze": False}` parameters are read where they lie, at every call.

    Torch hands over graphs and nothing else. What it leaves to Python runs in eager: the promise `no-fallback` refuses a graph that ends
    before its function does, but cannot see a function of which torch makes no graph at all. `torch.compile(fullgraph=True)` refuses
    both, and `ourcc.explain` lists what ran in eager.
    """
    given = {**options_of(mode), **(options or {})}
    read, is_told = build_options(given, "torch.compile"), not given.keys().isdisjoint({"target", "targets", "emulate"})
    if is_told:
        check_runs_here(read.targets)
    make = functools.partial(CompiledGraph, options=read, by_device=not is_told, names=names_of(graph_module), ended=break_of(graph_module))
    return aot(graph_module, example_inputs, make)


def options_of(mode: str | None) -> Mapping[str, Any]:
    """What a mode of torch.compile means here."""
    if mode is not None and mode not in MODES:
        raise UsageError(f"unknown mode: got {mode!r}, expected one of {', '.join(MODES)}", hint=nearest(mode, tuple(MODES)))
    return MODES[mode or "default"]


def aot(graph_module: Any, example_inputs: Sequence[Any], make: Callable[..., Any]) -> Any:
    """Let AOTAutograd make functional ATen graphs, and compile each by `make(graph, examples, freeze=...)`."""
    from torch._dynamo.backends.common import aot_autograd

    compiled = aot_autograd(
        fw_compiler=functools.partial(make, is_inference=False),
        bw_compiler=functools.partial(make, is_inference=False),
        inference_compiler=functools.partial(make, is_inference=True),
        decompositions=dict(decompositions()),
        # What a graph writes stays in it: the engine writes it where it lies.
        keep_inference_input_mutations=True,
    )
    return compiled(graph_module, example_inputs)


def check_runs_here(targets: Sequence[Target]) -> None:
    """UsageError where this machine runs none of the targets that were asked for."""
    here = Here.look()
    reasons = {target.name: target.why_not_here(here) for target in targets}
    if all(reason is not None for reason in reasons.values()):
        hint = "leave the option out: the target is that of the inputs' device; ourcc.build makes engines for other machines"
        why = "; ".join(dict.fromkeys(filter(None, reasons.values())))
        raise UsageError(f"target: torch.compile runs what it compiles on this machine, got {', '.join(reasons)}: {why}", hint=hint)


@dataclass(frozen=True)
class Build:
    """One compilation of a graph: what was imported, the engine (None where nothing is computed), what it rests on."""

    imported: Imported
    kept: KeptEngine | None
    watched: tuple[Watched, ...]
    is_shared: bool = False
    """Whether the engine is that of another graph, which was there already."""

    @property
    def engine(self) -> Engine | None:
        """What computes the answers."""
        return None if self.kept is None else self.kept.engine

    def is_current(self) -> bool:
        """Whether the frozen parameters are still there and unchanged."""
        return all(watched.is_current() for watched in self.watched)

    def holds(self, values: Sequence[Any]) -> bool:
        """Whether the frozen parameters are those of this call."""
        return all(watched.holds(values) for watched in self.watched)


class CompiledGraph:
    """One ATen graph, compiled at its first call: torch may ask for a graph and never run it."""

    def __init__(
        self,
        graph_module: Any,
        example_inputs: Sequence[Any],
        *,
        options: BuildOptions,
        is_inference: bool,
        by_device: bool = False,
        names: Sequence[str] = (),
        ended: Break | None = None,
    ) -> None:
        # Torch reads this mark from the instance: the arguments come as one list that may be emptied.
        self._boxed_call = True
        self.graph_module = graph_module
        self.options = options
        self.is_inference = is_inference
        self.refused: UnsupportedError | None = None
        self.names = names
        self.ended = ended
        if by_device:
            try:
                self.options = with_target(options, devices_of(graph_module, example_inputs))
            except UnsupportedError as error:
                self.refused = error
        guard_equal_sizes(graph_module)
        is_frozen = is_inference and options.freeze
        _expect_constants(options, is_frozen, is_inference)
        self.candidates = static_inputs(len(example_inputs)) if is_frozen else ()
        self.build: Build | None = None
        self.others: tuple[Build, ...] = ()
        self.builds = 0
        self.lock = threading.Lock()

    @property
    def imported(self) -> Imported | None:
        """What was imported at the last compilation."""
        return None if self.build is None else self.build.imported

    @property
    def engine(self) -> Engine | None:
        """The engine of the last compilation; None where torch computes everything."""
        return None if self.build is None else self.build.engine

    @property
    def is_shared(self) -> bool:
        """Whether the engine is one that another graph had made."""
        return self.build is not None and self.build.is_shared

    def __call__(self, *arguments: Any) -> list[Any]:
        """The graph's outputs, in memory of their own."""
        values = unboxed(arguments)
        build = self.build
        if build is None or not build.holds(values):
            build = self._rebuild(values)
        imported = build.imported
        if imported.is_left:
            return list(self.graph_module(*values))
        feeds = [_fed(values[feed.argument], feed.is_number) for feed in imported.feeds]
        states = WrittenTensors({name: values[number] for name, number in imported.states.items()}, values) if imported.states else None
        try:
            produced = build.engine.functions["main"].call(feeds, states) if build.engine is not None else ()
        except (IndexRangeError, ZeroDivisorError) as error:
            # What the data do wrong is an error in torch as well, and ours names the input and the op.
            in_users_words(error, self.graph_module, self.names)
            raise
        except (EngineError, InputError) as error:
            if states is not None and states.changed:
                raise
            return self._refused(values, error)
        if states is not None:
            states.finish()
        for number, position in imported.written.items():
            overwrite(values[number], tensor_of(produced[position]))
        return self._returned(imported, values, produced)

    def _returned(self, imported: Imported, values: Sequence[Any], produced: Sequence[Any]) -> list[Any]:
        """What the graph returns: the engine's outputs as torch lays them out, views of them and of arguments, sizes."""
        sizes = _Sizes(imported, values, produced)
        layouts = zip(produced, imported.devices, imported.strides, imported.offsets, strict=True)
        outputs = [_laid_out(output, device, strides, offset, sizes) for output, device, strides, offset in layouts]

        def find(root: Root) -> Any:
            if root.kind == "attribute":
                return functools.reduce(getattr, str(root.place).split("."), self.graph_module)
            return (values if root.kind == "argument" else outputs)[int(root.place)]

        views = imported.views.make(find, sizes.value)
        return [_result(result, outputs, views, sizes) for result in imported.results]

    def _rebuild(self, values: Sequence[Any]) -> Build:
        """Compile, unless another thread has done so meanwhile, or parameters came back that are still packed."""
        with self.lock:
            known = [build for build in (self.build, *self.others) if build is not None]
            found = next((build for build in known if build.holds(values)), None)
            if found is None:
                with long_build(self.graph_module):
                    found = self._compile(values)
                self.builds += 1
            # What reads parameters where they lie needs no others beside it.
            others = [build for build in known if build is not found and build.is_current()] if found.watched else []
            self.others = tuple(others[: PARAMETER_SETS - 1])
            self.build = found
            return found

    def frozen(self, values: Sequence[Any]) -> dict[int, Any]:
        """The parameters that may be frozen as they are now, by position."""
        candidates = self.candidates if self.builds <= REPACKS else ()
        return {number: values[number] for number in candidates if counts_writes(values[number])}

    def import_graph(self, frozen: Mapping[int, Any]) -> Imported:
        """The graph as a module with its calls; where that cannot be, what torch runs whole and why."""
        try:
            if self.refused is not None:
                raise self.refused
            return import_graph(self.graph_module, frozen=frozen)
        except Exception as error:
            if not may_leave(error, self.options):
                raise
            return left(self.graph_module, tell_left(error, self.graph_module, self.options))

    def _compile(self, values: Sequence[Any]) -> Build:
        if self.ended is not None:
            promises = tuple(each for each in self.options.require if each.subject == "no-fallback")
            enforce(broken_contract(self.ended), promises, (), TRACED)
        frozen = self.frozen(values)
        imported = self.import_graph(frozen)
        if imported.is_left:
            return self._left(imported)
        from ..pipeline import weight_passes

        asked = source_ops(imported.module)
        refuse_unsupported(self.options, asked)
        weight_passes(self.options)  # refuses what is asked and not there
        tell_calls(imported.fallbacks)
        try:
            expect_writable({name: values[number].device for name, number in imported.states.items()}, self.options.targets[0])
            return self._build(imported, asked, tuple(Watched(number, value) for number, value in frozen.items()))
        except Exception as error:
            if not may_leave(error, self.options):
                raise
            return self._left(left(self.graph_module, tell_left(error, self.graph_module, self.options)))

    def _left(self, imported: Imported) -> Build:
        """The graph run by torch, if that is allowed."""
        targets = tuple(target.name for target in self.options.targets)
        enforce(left_contract(imported.fallbacks), self.options.require, targets, TRACED)
        return Build(imported, None, ())

    def _refused(self, values: Sequence[Any], error: EngineError | InputError) -> list[Any]:
        """Torch's answer where the engine gives none: to this call, or to all if a call into torch was not what its trace said."""
        if any(requirement.subject == "no-fallback" for requirement in self.options.require):
            raise error
        reason = tell_refused(error, isinstance(error, EngineError))
        if isinstance(error, EngineError):
            self.build, self.others = Build(left(self.graph_module, reason), None, ()), ()
        return list(self.graph_module(*values))

    def _build(self, imported: Imported, asked: Mapping[Source, SourceOp], watched: tuple[Watched, ...]) -> Build:
        from ..pipeline import simplify

        if not imported.module.main.outputs and all(op.definition.is_pure for op in imported.module.main):
            return Build(imported, None, watched)
        simplified = simplify(imported.module, self.options)
        program = SharedProgram.of(imported.module, self.options, (each.place for each in watched))
        tell_workload(self.options.workload, program.module.facts)
        kept = kept_engines().find(program) if program.is_shareable else None
        build = Build(imported, kept or self._make(imported, program, asked, simplified, watched), watched, is_shared=kept is not None)
        if kept is not None:
            targets = (*(target.name for target in self.options.targets), *kept.engine.targets)
            held = kept.engine.contents
            contract = contract_of(asked, imported.module, self.options, held.best.plans.values(), held.report.get(IN_TF32, ()))
            enforce(contract, self.options.require, targets, TRACED)
        forget_values(imported.module)
        return build

    def _make(
        self,
        imported: Imported,
        program: SharedProgram,
        asked: Mapping[Source, SourceOp],
        simplified: Simplified,
        watched: Sequence[Watched],
    ) -> KeptEngine:
        """An engine of this graph's own, which later graphs may find."""
        from ..pipeline import compile_simplified

        if program.is_shareable:
            admit_ones(program.module)
        contents = compile_simplified(program.module, asked, simplified, self.options.within(program.module.facts), remedies=TRACED)
        contract = Contract.from_json(contents.report["contract"])
        tell_notes(unmet(contract, self.options, is_whole=False))
        tell_notes(widened_again(contract, list(contents.parts), self.options))
        on_gpu, pool = FrozenOnGpu(program.module, watched, imported.frozen), packed_weights()
        weights = {
            file: {name: pool.share(on_gpu.lying(c), watched) for name, c in group.items()} for file, group in contents.weights.items()
        }
        threads, graphs = self.options.threads or self.options.environment.threads, self.options.graphs and self.options.environment.graphs
        made = dataclasses.replace(contents, weights=weights)
        engine = Engine(made, threads=threads, call=callback(imported.calls), graphs=graphs)
        kept = KeptEngine(program, engine)
        if program.is_shareable:
            kept_engines().keep(kept)
        return kept


def left_contract(fallbacks: Sequence[Fallback]) -> Contract:
    """The contract of a graph that torch runs whole."""
    return Contract(tuple(fallback_row(each.source.name, each.operator, "compiled", each.why) for each in fallbacks))


def unboxed(arguments: tuple[Any, ...]) -> Sequence[Any]:
    """The arguments of a call; torch's list of them is emptied, so that memory ends with its last reader."""
    if len(arguments) != 1 or not isinstance(arguments[0], list):
        return arguments
    values = tuple(arguments[0])
    arguments[0].clear()
    return values


def static_inputs(count: int) -> tuple[int, ...]:
    """The positions of parameters and buffers that the graph does not write, as AOTAutograd knows them."""
    import torch

    context = torch._guards.TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    if metadata is None:
        return ()
    written = {number for number, info in enumerate(metadata.input_info) if info.mutates_data or info.mutates_metadata}
    return tuple(number for number in metadata.static_input_indices if number < count and number not in written)


def _fed(value: Any, is_number: bool) -> Any:
    if not is_number:
        return value
    import torch

    return torch.tensor(int(value), dtype=torch.int64)


class _Sizes:
    """The symbols of one call, worked out when somebody asks."""

    def __init__(self, imported: Imported, values: Sequence[Any], produced: Sequence[Any]) -> None:
        self.imported = imported
        self.values = values
        self.produced = produced

    def value(self, size: dims.Dim) -> int:
        return size if isinstance(size, int) else dims.evaluate(size, {name: self._symbol(name) for name in dims.symbols(size)})

    def _symbol(self, name: str) -> int:
        place = self.imported.places.get(name)
        if place is None:
            return int(self.produced[self.imported.given[name]])
        argument, axis = place
        return int(self.values[argument]) if axis is None else int(self.values[argument].shape[axis])


def _laid_out(output: Any, device: Any, strides: Sequence[dims.Dim] | None, offset: dims.Dim, sizes: _Sizes) -> Any:
    # An engine without inputs answers in numpy, whose memory torch cannot resize.
    tensor = on_device(output if hasattr(output, "untyped_storage") else tensor_of(output).clone(), device)
    if strides is None and offset == 0:
        return tensor
    wanted = tensor.stride() if strides is None else [sizes.value(stride) for stride in strides]
    return with_strides(tensor, wanted, sizes.value(offset))


def _result(result: Result, outputs: Sequence[Any], views: Sequence[Any], sizes: _Sizes) -> Any:
    if result.slot is not None:
        return views[result.slot]
    if result.size is not None:
        return sizes.value(result.size)
    if result.position is None:
        return None
    return outputs[result.position].item() if result.is_number else outputs[result.position]


def _expect_constants(options: BuildOptions, is_frozen: bool, is_inference: bool) -> None:
    """UsageError for options that change weights where these are inputs, which a program reads at every call."""
    for name, value in (("quantize", options.quantize), ("sparsity", options.sparsity)):
        if value is not None and not is_frozen:
            why = "parameters are read at every call (freeze is off)" if is_inference else "parameters are inputs while gradients are on"
            hint = "leave freeze on" if is_inference else "call the program under torch.no_grad()"
            raise UsageError(f"option {name!r} has no effect here: {why}", hint=hint)
