"""`ourcc plan`: what a language model takes on a target before it is built, from its config alone: memory, rates, floors of time."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from pathlib import Path

from ...ir.errors import UsageError
from ...passes.quantize import QUANTIZATIONS
from ...passes.tile.gpu.rates import Rate
from ...runtime.kinds import CONFIG
from ...runtime.language.facts import CHUNK
from ..importers.checkpoints import Checkpoint, read_config, read_gguf
from ..language.footprint import PLAIN, Weighed, operations, seen_pairs, token_bytes, weigh, workspace
from ..language.outline import Outline, outline_of, stored_dtype
from ..report.table import Cell, Report, Table
from ..requests import hint_of_format, parse_batch, parse_cache, parse_choice
from ..targets.machine import DeviceFigures
from ..targets.registry import parse_target
from ..targets.target import Target
from .products import PRECISIONS, product_rate

PROMPT = 512


@dataclass(frozen=True)
class Phase:
    """What one call must do at least: tokens that it takes, operations, bytes of weights and of caches that it moves."""

    name: str
    tokens: int
    operations: int
    weights: int
    cache: int


def plan(
    model: Path,
    *,
    target: str = "cpu",
    format: str | None = None,
    cache: str = "f32",
    batch: int = 1,
    context: int | None = None,
    prompt: int | None = None,
) -> Report:
    """Parameters, memory and floors of time for `batch` sequences of `context` tokens; no weight is read."""
    checkpoint = _checkpoint(model)
    found = parse_target(target)
    format = None if format is None else _format(format)
    parse_cache(cache)
    batch = parse_batch(batch)
    _check_format(checkpoint, format)
    outline = outline_of(checkpoint, context)
    context = outline.length
    prompt = min(PROMPT, context) if prompt is None else prompt
    if not 1 <= prompt <= context:
        raise UsageError(f"prompt {prompt}: expected 1 to {context} tokens, the context")
    weighed, device = weigh(outline, format), found.device()
    token = token_bytes(outline, cache)
    chunk = min(CHUNK, context)
    held = {
        "S=1": batch * workspace(outline.graph, {"S": 1, "T": context, "R": 1}),
        f"S={chunk}": workspace(outline.graph, {"S": chunk, "T": context, "R": 1}),
    }
    total = weighed.total + batch * context * token + max(held.values())
    devices = ceil(total / device.memory_bytes)
    precision = PRECISIONS.get(format if format in PLAIN else _own(checkpoint))
    rate = _rate(found, device, outline, max(prompt, batch), format, precision, checkpoint)
    facts: dict[str, Cell] = {
        "model": checkpoint.name,
        "architecture": outline.config.architecture,
        "parameters": outline.parameters,
        "format": format or "as stored",
        "cache": cache,
        "batch": batch,
        "context": context,
        "target": f"{found.name}: {device.name}",
        "fits": "on one device" if devices == 1 else f"no: an engine runs on one device; {devices} would hold the bytes",
        "memory_of_a_device": device.memory_bytes,
        "bytes_per_second": device.memory_rate,
        "operations_per_second": rate.per_second,
        "products_in": rate.products_in,
        **({} if rate.instruction is None else {"instruction": rate.instruction, "precision": f"as with --precision {precision}"}),
        "rates": device.source,
    }
    memory = _memory(outline, weighed, token, batch, context, held, format)
    phases = _phases(outline, weighed, token, batch, context, prompt)
    numbers: dict[str, dict[str, Cell]] = {"fits": {"one_device": devices == 1, "devices_that_hold_it": devices}}
    return Report(facts, (_memory_table(memory, total, device), _times(phases, device, rate)), numbers=numbers)


def _format(word: str) -> str:
    """A format by its name, or by what stands before `-weight` in it where nothing else has that name: a plan weighs weights."""
    word = next((name for name, precision in PRECISIONS.items() if precision == word), word)
    name = f"{word}-weight" if word not in QUANTIZATIONS and f"{word}-weight" in QUANTIZATIONS else word
    return parse_choice(name, (*PLAIN, *QUANTIZATIONS), "format", hint_of_format(word))


def _checkpoint(model: Path) -> Checkpoint:
    if model.is_dir():
        return read_config(model)
    if model.suffix != ".gguf":
        hint = "plan takes a model before it is built: ourcc inspect shows an engine"
        if model.name == CONFIG:
            hint = f"name the folder of this file: ourcc plan {model.parent}"
        raise UsageError(f"cannot plan {str(model)!r}: expected a folder with config.json, or a .gguf file", hint=hint)
    return read_gguf(model)


def _check_format(checkpoint: Checkpoint, format: str | None) -> None:
    coded = next((stored for stored in checkpoint.tensors.values() if stored.format is not None), None)
    keeps = format is None or (format in QUANTIZATIONS and QUANTIZATIONS[format].format is None)
    if coded is not None and not keeps:
        what = f"format {format}: the file's weights are coded already, {coded.name} as {coded.format}"
        raise UsageError(what, hint="leave out --format, say a8, or plan the model that the file was made of")


def _own(checkpoint: Checkpoint) -> str:
    """The dtype that weights have where nothing codes them; those of a GGUF file are taken for f32."""
    return stored_dtype(checkpoint) if checkpoint.kind == "folder" else "f32"


def _rate(
    target: Target,
    device: DeviceFigures,
    outline: Outline,
    rows: int,
    format: str | None,
    precision: str | None,
    checkpoint: Checkpoint,
) -> Rate:
    """At what rate products go: that of the kernels that a build takes for a layer of this size, or the one rate of the device."""
    coded = next((stored.format for stored in checkpoint.tensors.values() if stored.format is not None), None)
    found = product_rate(target, outline, rows, format if format in QUANTIZATIONS else None, precision, coded)
    return found or Rate(device.rates["f32"], "f32")


def _memory(
    outline: Outline, weighed: Weighed, token: int, batch: int, context: int, held: dict[str, int], format: str | None
) -> list[tuple[str, int, str]]:
    what = f"weights in {format}" if format is not None else "weights"
    of_format = "those of products, scales included"
    parts = [(what, weighed.coded, of_format)] if weighed.coded else []
    others = "embeddings, norms and what else is in no product" if weighed.coded else f"{outline.parameters} numbers as they are stored"
    why = "; ".join(f"{count} of products stay: {reason}" for reason, count in weighed.kept.items())
    parts.append(("other weights" if weighed.coded else what, weighed.others, "; ".join(filter(None, (others, why)))))
    if weighed.copied:
        parts.append(("second order of a table", weighed.copied, "the embedding is the head too, and lies there by rows and for products"))
    parts.append(("keys and values", batch * context * token, f"{batch} sequences x {context} tokens x {token} bytes"))
    size, most = max(held.items(), key=lambda each: each[1])
    calls = f"{batch} sequences of 1 token" if size == "S=1" else f"{size[2:]} tokens of a prompt"
    parts.append(("workspace", most, f"estimate for {calls}: values alive at once as ops stand, none fused"))
    return parts


def _memory_table(parts: list[tuple[str, int, str]], total: int, device: DeviceFigures) -> Table:
    last = ("all", total, f"{100 * total / device.memory_bytes:.1f} % of {device.memory_bytes} bytes; drivers need some besides")
    rows = tuple((name, size, round(size / 1e9, 3), source) for name, size, source in (*parts, last))
    return Table("memory", ("what", "bytes", "gbytes", "of"), rows, (), ("what", "gbytes", "of"))


def _phases(outline: Outline, weighed: Weighed, token: int, batch: int, context: int, prompt: int) -> tuple[Phase, ...]:
    seen = seen_pairs(outline, context - 1, 1)
    return (
        Phase("decode", batch, batch * operations(outline, context - 1, 1), weighed.read + batch * weighed.row, batch * (seen + 1) * token),
        Phase("prompt", prompt, operations(outline, 0, prompt), weighed.read + prompt * weighed.row, prompt * token),
    )


def _times(phases: tuple[Phase, ...], device: DeviceFigures, rate: Rate) -> Table:
    rows = []
    for phase in phases:
        computing = phase.operations / rate.per_second
        moving = (phase.weights + phase.cache) / device.memory_rate
        floor = max(computing, moving)
        bound = "operations" if computing > moving else "bytes"
        sizes = phase.operations, phase.weights, phase.cache
        rows.append((phase.name, *sizes, computing * 1e3, moving * 1e3, bound, floor * 1e3, phase.tokens / floor))
    columns = ("phase", "operations", "weight_bytes", "cache_bytes", "compute_ms", "move_ms", "bound", "ms", "tokens_per_second")
    notes = (
        "compute_ms = operations / operations_per_second, move_ms = bytes / bytes_per_second, ms the longer one: a floor, of one device",
        "decode: a token of each sequence of the batch, whose cache is full; prompt: all of one, ms the least time to its first token",
    )
    brief = ("phase", "compute_ms", "move_ms", "bound", "ms", "tokens_per_second")
    return Table("roofline", columns, tuple(rows), notes, brief)
