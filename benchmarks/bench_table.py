"""The table of `make bench`: minimum times, and how many times as long as the engine the others take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PEERS = ("eager", "inductor", "onnxruntime")
HEADINGS = ("model", "size", "ourcc", "eager", "Inductor", "ONNX Runtime", "two eager runs apart", "share of FMA rate")


def markdown(results: Mapping[str, Any]) -> str:
    """The results as Markdown, with what they were measured on."""
    machine = results["machine"]
    rate = machine["fma_gflops"]
    lines = [
        f"Made by `{results['command']}`. Float32, one thread of {machine['cpu']} ({', '.join(machine['flags'])}), measured at",
        f"{rate} GFLOP/s of multiply-adds and {machine['read_gbytes_per_second']} GB/s of reading; {_versions(machine)}.",
        "Milliseconds: minimum (median) over interleaved rounds in one process; in brackets how many times as long as the",
        "engine, by minimum.",
        *([] if results["layers"] is None else [f"**Cut to {results['layers']} layers each.**"]),
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "|---|---|" + "---:|" * (len(HEADINGS) - 2),
    ]
    for name, result in results["models"].items():
        if "error" in result:
            lines.append(f"| {result.get('title', name)} | {result['error']} |" + " |" * (len(HEADINGS) - 2))
        lines += [_row(result["title"], size, rate) for size in result.get("sizes", ())]
    return "\n".join([*lines, "", _verdict(results["models"]), ""])


def _verdict(found: Mapping[str, Any]) -> str:
    """One sentence on whether any model is slower than eager."""
    measured = [(result["title"], size) for result in found.values() for size in result.get("sizes", ())]
    slower = [f"{title} at {size['size']}" for title, size in measured if is_slower(size)]
    if slower:
        return f"Slower than eager by more than two eager runs are apart: {', '.join(slower)}."
    return f"Of {len(measured)} measured, none is slower than eager by more than two eager runs are apart."


def _versions(machine: Mapping[str, Any]) -> str:
    versions = machine["versions"]
    return ", ".join(f"{name} {versions[name]}" for name in ("torch", "onnxruntime") if name in versions)


def spread(size: Mapping[str, Any]) -> float:
    """How far apart the minimum times of two runs of eager are, as a share of the shorter."""
    first, second = (_times(size)[name]["minimum_ms"] for name in ("eager", "eager again"))
    return float(abs(first - second) / min(first, second))


def is_slower(size: Mapping[str, Any]) -> bool:
    """Whether the engine's minimum is above eager's by more than the spread of two eager runs."""
    times = _times(size)
    eager = min(times["eager"]["minimum_ms"], times["eager again"]["minimum_ms"])
    return bool(times["ourcc"]["minimum_ms"] > eager * (1 + spread(size)))


def _times(size: Mapping[str, Any]) -> dict[str, Mapping[str, float]]:
    return {row["what"]: row for row in size["times"]}


def _row(title: str, size: Mapping[str, Any], rate: float) -> str:
    times = _times(size)
    ours = times["ourcc"]
    cells = [title, size["size"], f"**{ours['minimum_ms']:.2f}** ({ours['median_ms']:.2f})"]
    for peer in PEERS:
        row = times[peer]
        cells.append(f"{row['minimum_ms']:.2f} ({row['median_ms']:.2f}) [{row['minimum_ms'] / ours['minimum_ms']:.2f}]")
    cells += [f"{spread(size):.1%}", f"{size['gflop'] / (ours['minimum_ms'] * 1e-3) / rate:.0%}"]
    return "| " + " | ".join(cells) + " |"
