"""A `.pt2` file as an exported program, and from there as a graph module: no member is run, evaluated or unpickled."""

from __future__ import annotations

import os
from typing import Any

from .....ir.errors import ModelError, UnsupportedError
from .....ir.graph import Module
from ..export import import_exported
from .archive import Archive
from .entries import Entry
from .graph import GraphBuilder
from .sizes import Sizes
from .tensors import dtype_of_number, stored_tensor

MAJOR = 8
WEIGHTS = ("data/weights", "data/weights/{}_weights_config.json")
CONSTANTS = ("data/constants", "data/constants/{}_constants_config.json")
# What the file calls an input that is stored, where its name stands, and what torch calls it.
STORED = {
    "parameter": ("parameter_name", "PARAMETER"),
    "buffer": ("buffer_name", "BUFFER"),
    "tensor_constant": ("tensor_constant_name", "CONSTANT_TENSOR"),
}
WRITTEN = {
    "buffer_mutation": ("buffer_name", "BUFFER_MUTATION"),
    "parameter_mutation": ("parameter_name", "PARAMETER_MUTATION"),
    "user_input_mutation": ("user_input_name", "USER_INPUT_MUTATION"),
}


def import_pt2(path: str | os.PathLike[str], *, trust_pickle: bool = False) -> Module:
    """The graph module of a file of torch.export.save."""
    return import_exported(read_program(path, trust_pickle=trust_pickle))


def read_program(path: str | os.PathLike[str], *, trust_pickle: bool = False) -> Any:
    """The torch.export.ExportedProgram of a file; ModelError where the file is damaged or hostile."""
    with Archive(path) as archive:
        name = _only_model(archive)
        program = Entry(archive.json(f"models/{name}.json"), f"models/{name}.json", archive.source)
        major = program.at("schema_version").at("major").integer()
        if major != MAJOR:
            raise UnsupportedError(
                f"the program has schema version {major}, expected {MAJOR}",
                source=archive.source,
                hint="export the model again with torch 2.11 or later",
            )
        return _Reader(archive, name, program, trust_pickle).read()


def _only_model(archive: Archive) -> str:
    names = [name.removeprefix("models/").removesuffix(".json") for name in archive.names("models/") if name.endswith(".json")]
    if len(names) != 1:
        raise ModelError(
            f"the archive holds {len(names)} programs, expected one", source=archive.source, hint="save one program with torch.export.save"
        )
    return names[0]


def _stored(archive: Archive, name: str) -> Entry:
    """The stored tensors by name; none where the archive lacks that list."""
    found = archive.maybe_json(name)
    return Entry({}, name, archive.source) if found is None else Entry(found, name, archive.source).at("config")


class _Reader:
    """The state of reading one program."""

    def __init__(self, archive: Archive, name: str, program: Entry, trust_pickle: bool) -> None:
        from torch._subclasses.fake_tensor import FakeTensorMode

        self.archive = archive
        self.trust_pickle = trust_pickle
        self.graph = program.at("graph_module").at("graph")
        self.signature = program.at("graph_module").at("signature")
        self.sizes = Sizes(program.at("range_constraints"))
        self.builder = GraphBuilder(FakeTensorMode(allow_non_fake_inputs=True, shape_env=self.sizes.environment), self.sizes)
        self.stores = {folder: _stored(archive, config.format(name)) for folder, config in (WEIGHTS, CONSTANTS)}
        self.state: dict[str, Any] = {}
        self.constants: dict[str, Any] = {}
        self.arguments: list[str] = []

    def read(self) -> Any:
        """Inputs, nodes and outputs, put together as torch does."""
        from torch._export.verifier import TrainingIRVerifier
        from torch.export import ExportedProgram
        from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
        from torch.export.graph_signature import ExportGraphSignature
        from torch.utils import _pytree

        inputs = self._inputs()
        self.builder.nodes(self.graph.at("nodes"))
        outputs = self._outputs()
        results = sum(spec.kind.name == "USER_OUTPUT" for spec in outputs)
        call = ModuleCallSignature(
            inputs=[],
            outputs=[],
            in_spec=_pytree.tree_structure((tuple(range(len(self.arguments))), {})),
            out_spec=_pytree.tree_structure(tuple(range(results))),
            forward_arg_names=self.arguments,
        )
        return ExportedProgram(
            self.builder.root,
            self.builder.graph,
            ExportGraphSignature(inputs, outputs),
            self.state,
            self.sizes.constraints(),
            [ModuleCallEntry("", call)],
            constants=self.constants,
            verifiers=[TrainingIRVerifier],
        )

    # inputs

    def _inputs(self) -> list[Any]:
        specs, inputs = list(self.signature.at("input_specs").parts()), list(self.graph.at("inputs").parts())
        if len(specs) != len(inputs):
            raise self.signature.fail(f"describes {len(specs)} inputs, expected {len(inputs)}")
        types = self.graph.at("tensor_values")
        for spec, entry in zip(specs, inputs, strict=True):
            if spec.case()[0] == "user_input" and entry.case()[0] == "as_tensor":
                name = entry.at("as_tensor").at("name").text()
                self.sizes.learn(name, types.at(name).at("sizes").parts())
        return [self._input(spec, entry, types) for spec, entry in zip(specs, inputs, strict=True)]

    def _input(self, spec: Entry, entry: Entry, types: Entry) -> Any:
        kind, described = spec.case()
        if kind in STORED:
            return self._stored(kind, described, entry, types)
        if kind == "user_input":
            return self._user_input(entry, types)
        if kind == "constant_input":
            return self._constant_input(described)
        raise UnsupportedError(
            f"{spec.place}: an input of the kind {kind[:40]!r} has no form here",
            source=spec.source,
            hint="export the model without custom objects and side effects",
        )

    def _stored(self, kind: str, described: Entry, entry: Entry, types: Entry) -> Any:
        """A parameter, a buffer or a constant, with its bytes."""
        import torch
        from torch.export.graph_signature import InputKind, InputSpec, TensorArgument

        field, torch_kind = STORED[kind]
        name, target = entry.at("as_tensor").at("name").identifier(), described.at(field).path()
        persistent = described.at("persistent").boolean() if kind == "buffer" else None
        tensor = self._tensor(target, described, first=CONSTANTS if kind == "tensor_constant" or persistent is False else WEIGHTS)
        meta = types.at(name)
        if (tensor.dtype, tuple(tensor.shape)) != (dtype_of_number(meta.at("dtype")), self.sizes.shape(meta.at("sizes"))):
            raise meta.fail(f"the stored tensor {target!r} is {tensor.dtype} {list(tensor.shape)}, expected what the graph says of it")
        if kind == "parameter":
            tensor = torch.nn.Parameter(tensor, requires_grad=False)
        (self.state if kind == "parameter" or persistent else self.constants)[target] = tensor
        self.builder.placeholder(entry, name, self.builder.fake_mode.from_tensor(tensor, static_shapes=True))
        return InputSpec(InputKind[torch_kind], TensorArgument(name=name), target, persistent)

    def _tensor(self, target: str, described: Entry, first: tuple[str, str]) -> Any:
        folders = (first[0], *(folder for folder in self.stores if folder != first[0]))
        for folder in folders:
            found = self.stores[folder].maybe(target)
            if found is not None:
                return stored_tensor(self.archive, folder, target, found, self.trust_pickle)
        raise described.fail(f"the archive holds no tensor {target!r}")

    def _user_input(self, entry: Entry, types: Entry) -> Any:
        import torch
        from torch.export.graph_signature import ConstantArgument, InputKind, InputSpec, SymIntArgument, TensorArgument

        kind, value = entry.case()
        if kind == "as_tensor":
            name = value.at("name").identifier()
            return self._argument(
                entry, name, self.builder.fake(types.at(name)), InputSpec(InputKind.USER_INPUT, TensorArgument(name=name), None)
            )
        if kind == "as_sym_int":
            name = value.at("as_name").identifier()
            size = self.sizes.number(self.graph.at("sym_int_values").at(name))
            argument = SymIntArgument(name=name) if isinstance(size, torch.SymInt) else ConstantArgument(name=name, value=size)
            return self._argument(entry, name, size, InputSpec(InputKind.USER_INPUT, argument, None))
        raise UnsupportedError(
            f"{entry.place}: an input of the kind {kind[:40]!r} has no form here", source=entry.source, hint="pass it as a tensor"
        )

    def _argument(self, entry: Entry, name: str, value: Any, spec: Any) -> Any:
        self.arguments.append(name)
        self.builder.placeholder(entry, name, value)
        return spec

    def _constant_input(self, described: Entry) -> Any:
        """An argument that the export fixed: it stays one, and nobody reads it."""
        from torch.export.graph_signature import ConstantArgument, InputKind, InputSpec

        name = described.at("name").identifier()
        value = self.builder.argument(described.at("value"))
        return self._argument(described, name, value, InputSpec(InputKind.USER_INPUT, ConstantArgument(name=name, value=value), None))

    # outputs

    def _outputs(self) -> list[Any]:
        results = self.builder.output(self.graph.at("outputs"))
        specs = list(self.signature.at("output_specs").parts())
        if len(specs) != len(results):
            raise self.signature.fail(f"describes {len(specs)} results, expected {len(results)}")
        return [self._output(spec, result) for spec, result in zip(specs, results, strict=True)]

    def _output(self, spec: Entry, result: Any) -> Any:
        import torch
        from torch.export.graph_signature import ConstantArgument, OutputKind, OutputSpec, SymIntArgument, TensorArgument

        kind, described = spec.case()
        if kind in WRITTEN:
            field, torch_kind = WRITTEN[kind]
            return OutputSpec(OutputKind[torch_kind], TensorArgument(name=str(result.name)), described.at(field).path())
        if kind != "user_output":
            raise UnsupportedError(
                f"{spec.place}: a result of the kind {kind[:40]!r} has no form here",
                source=spec.source,
                hint="export the model for inference",
            )
        if not isinstance(result, torch.fx.Node):
            return OutputSpec(OutputKind.USER_OUTPUT, ConstantArgument(name="", value=result), None)
        of_tensor = isinstance(result.meta["val"], torch.Tensor)
        argument = TensorArgument(name=result.name) if of_tensor else SymIntArgument(name=result.name)
        return OutputSpec(OutputKind.USER_OUTPUT, argument, None)
