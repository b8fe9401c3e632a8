"""`ourcc plan`: what a language model takes on a target before it is built, from its config alone: memory, devices, floors of time."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from pathlib import Path

from ...ir.errors import UsageError
from ...passes.quantize import QUANTIZATIONS
from ...runtime.kinds import CONFIG
from ...runtime.language.facts import CHUNK
from ..importers.checkpoints import Checkpoint, read_config, read_gguf
from ..language.footprint import PLAIN, Weighed, operations, seen_pairs, token_bytes, weigh, workspace
from ..language.outline import Outline, outline_of, stored_dtype
from ..report.table import Cell, Report, Table
from ..requests import hint_of_gguf, parse_batch, parse_cache, parse_choice
from ..targets.machine import DeviceFigures
from ..targets.registry import parse_target

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
    multiplied = _multiplied_in(device, format, checkpoint)
    facts: dict[str, Cell] = {
        "model": checkpoint.name,
        "architecture": outline.config.architecture,
        "parameters": outline.parameters,
        "format": format or "as stored",
        "cache": cache,
        "batch": batch,
        "context": context,
        "target": f"{found.name}: {device.name}",
        "devices": devices,
        "memory_of_a_device": device.memory_bytes,
        "bytes_per_second": device.memory_rate,
        "operations_per_second": device.rates[multiplied],
        "products_in": multiplied,
        "rates": device.source,
    }
    memory = _memory(outline, weighed, token, batch, context, held, format)
    phases = _phases(outline, weighed, token, batch, context, prompt)
    return Report(facts, (_memory_table(memory, total, devices, device), _times(phases, devices, device, multiplied)))


def _format(word: str) -> str:
    """A format by its name, or by what stands before `-weight` in it where nothing else has that name: a plan weighs weights."""
    name = f"{word}-weight" if word not in QUANTIZATIONS and f"{word}-weight" in QUANTIZATIONS else word
    return parse_choice(name, (*PLAIN, *QUANTIZATIONS), "format", hint_of_gguf(word))


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


def _multiplied_in(device: DeviceFigures, format: str | None, checkpoint: Checkpoint) -> str:
    """The dtype whose rate products run at: of weights in few bits that of codes where activations are rounded, else of floats."""
    asked = QUANTIZATIONS.get(format or "")
    own = stored_dtype(checkpoint) if checkpoint.kind == "folder" else None
    is_coded = own is None or (asked is not None and asked.format is not None)
    multiplied = format if format in PLAIN else "i8" if asked is not None and asked.is_integer and is_coded else own
    # Floats of a GGUF file, and those that the device does not multiply, are taken as ones of 16 bits where there are such products.
    return next(each for each in (multiplied, "bf16", "f32") if each is not None and each in device.rates)


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


def _memory_table(parts: list[tuple[str, int, str]], total: int, devices: int, device: DeviceFigures) -> Table:
    share = total / (devices * device.memory_bytes)
    last = ("all", total, f"{100 * share:.1f} % of {devices} x {device.memory_bytes} bytes, split evenly; drivers need some besides")
    rows = tuple((name, size, round(size / 1e9, 3), source) for name, size, source in (*parts, last))
    return Table("memory", ("what", "bytes", "gbytes", "of"), rows, (), ("what", "gbytes", "of"))


def _phases(outline: Outline, weighed: Weighed, token: int, batch: int, context: int, prompt: int) -> tuple[Phase, ...]:
    seen = seen_pairs(outline, context - 1, 1)
    return (
        Phase("decode", batch, batch * operations(outline, context - 1, 1), weighed.read + batch * weighed.row, batch * (seen + 1) * token),
        Phase("prompt", prompt, operations(outline, 0, prompt), weighed.read + prompt * weighed.row, prompt * token),
    )


def _times(phases: tuple[Phase, ...], devices: int, device: DeviceFigures, multiplied: str) -> Table:
    rows = []
    for phase in phases:
        computing = phase.operations / (devices * device.rates[multiplied])
        moving = (phase.weights + phase.cache) / (devices * device.memory_rate)
        floor = max(computing, moving)
        bound = "operations" if computing > moving else "bytes"
        sizes = phase.operations, phase.weights, phase.cache
        rows.append((phase.name, *sizes, computing * 1e3, moving * 1e3, bound, floor * 1e3, phase.tokens / floor))
    columns = ("phase", "operations", "weight_bytes", "cache_bytes", "compute_ms", "move_ms", "bound", "ms", "tokens_per_second")
    notes = (
        "compute_ms = operations / (devices x operations_per_second), move_ms = bytes / (devices x bytes_per_second), ms the longer one:"
        " a floor, with nothing lost between devices",
        "decode: a token of each sequence of the batch, whose cache is full; prompt: all of one, ms the least time to its first token",
    )
    brief = ("phase", "compute_ms", "move_ms", "bound", "ms", "tokens_per_second")
    return Table("roofline", columns, tuple(rows), notes, brief)
