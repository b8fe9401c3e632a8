"""Whole networks estimated: the sum of our kernels beside the sum of Inductor's; writes end_to_end.* in benchmarks/results.

python benchmarks/kernels/end_to_end.py                        everything, H100 and B200
python benchmarks/kernels/end_to_end.py --only MiniLM --most 4  some networks, at most 4 choices of templates; nothing is written

Inductor writes each network once for each choice of templates, and every kernel is taken at the best of its choices. Where it
would call a library for attention, the best kernel of others for that shape stands in (peers.py). Peers are judged in a
process of their own for each machine, since it pretends to have it.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from believe import COUNTED, quickest
from chosen import chosen
from counted import row_of
from estimate import estimate
from launches import NotEstimated, compiled
from machines import MACHINES, Machine
from networks import Network, networks
from trips import UnknownTrips

RESULTS = Path(__file__).parents[1] / "results"
ESTIMATED = ("H100", "B200")
ATTENTION = "peers.attention.default"
"""What stands for attention in the peer's network; a call of a library as Inductor sees it."""
MOST = 4
"""Choices of templates that are tried unless said otherwise: the likeliest come first (inductor.py)."""


def ours_of(network: Network, machine: Machine) -> dict[str, Any]:
    """The sum of our kernels, and each of them."""
    from ours import contents_of_module, launches_of

    torch.manual_seed(0)
    contents = contents_of_module(network.module(), network.inputs(), machine.architecture)
    rows = [row_of(launch, machine) for launch in launches_of(contents, machine.architecture)]
    kernels = [{name: row[name] for name in ("kernel", "us", "bound", "gigaop", "grid")} for row in rows]
    return summed(network, machine, kernels)


def peer_of(network: Network, machine: Machine, most: int) -> dict[str, Any]:
    """The sum of Inductor's kernels and of the best attention for the shape; only where the process pretends to have the machine."""
    import inductor
    import peers

    module = network.module()
    function, weights = peers.with_weights(module.eval(), len(network.shapes))
    judge = _judge(machine)
    # By the number of kernels: what is fused may depend on the choice.
    steps: dict[int, list[list[Judged]]] = {}
    attentions = 0
    for at, (_, text) in enumerate(inductor.texts(_with_attention_aside(function), [*network.typed(), *weights])):
        libraries = Counter(inductor.LIBRARY.findall(text))
        attentions = libraries.pop(ATTENTION, 0)
        if libraries:
            raise NotEstimated(f"calls {', '.join(libraries)}")
        found = [judge(call) for call in inductor.calls_of(text)]
        for step, more in zip(steps.setdefault(len(found), [[] for _ in found]), found, strict=True):
            step += more
        if at + 1 >= most:
            break
    if any(not step for each in steps.values() for step in each):
        raise NotEstimated("a kernel has no configuration that can be estimated")
    each_best = ([min(step, key=lambda row: row.us) for step in each] for each in steps.values())
    chosen = min(each_best, key=lambda each: sum(row.us for row in each))
    kernels = [{"kernel": row.title, "us": row.us, "gigaop": row.gigaop} for row in chosen]
    attention = peers.judge(network.attention, machine, most)
    name, row = min(attention["best"].items(), key=lambda each: each[1]["us"])
    gigaop = sum(kernel["gigaop"] for kernel in row["kernels"])
    kernels += [{"kernel": f"{name}, {row['title']}", "us": row["us"], "gigaop": gigaop}] * attentions
    return summed(network, machine, kernels)


@dataclass(frozen=True)
class Judged:
    """A kernel of a peer at one configuration: microseconds, its name, and billions of operations of its matrix instructions."""

    us: float
    title: str
    gigaop: float


def needed(source: str) -> float:
    """Billions of operations of a product as its template says its sizes; 0 of what is none."""
    sizes = dict(re.findall(r"^ +([MNK]) = (\d+)$", source, re.MULTILINE))
    return 2.0 * prod(map(int, sizes.values())) / 1e9 if len(sizes) == 3 else 0.0


def summed(network: Network, machine: Machine, kernels: list[dict[str, Any]]) -> dict[str, Any]:
    """The sum of kernels; NotEstimated if no machine's matrix units could be so fast."""
    us = sum(kernel["us"] for kernel in kernels)
    least = quickest(operations(network), machine.matrix["bf16"], machine)
    if us < least:
        raise NotEstimated(f"estimated at {us:.0f} us, below the {least:.0f} us that matrix units need")
    return {"us": round(us, 1), "launches": len(kernels), "kernels": kernels}


def operations(network: Network) -> float:
    """Multiplications and additions of a network's products and attentions, a causal one counted by half."""
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        module, inputs = network.module(), network.inputs()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(*(each.to("meta") for each in inputs))
    (batch, heads, queries, deep), (_, _, keys, _), _ = network.attention.shapes
    spared = 2.0 * batch * heads * queries * keys * deep if network.attention.name == "causal" else 0.0
    return float(counter.get_total_flops()) - spared


def _judge(machine: Machine) -> Callable[[Any], list[Judged]]:
    """A function from a call of a kernel to all of its configurations, which remembers.

    Those that miss work are left out: where a loop is not found in the code, an estimate is far too good.
    """
    import faked
    import inductor

    known: dict[Any, list[Judged]] = {}

    def judge(call: Any) -> list[Judged]:
        if call not in known:
            known[call] = []
            for wanted in inductor.choices_of(call):
                try:
                    launch = compiled(wanted, faked.capability_of(machine))
                    found = estimate(launch, machine)
                except (NotEstimated, UnknownTrips, ValueError) as error:
                    print(f"  {call.kernel}: {error}"[:160], file=sys.stderr)
                    continue
                gigaop = found.program.operations * launch.programs / 1e9
                if gigaop < COUNTED * needed(call.source):
                    print(f"  {call.kernel}: {gigaop:.3g} of {needed(call.source):.3g} billion operations counted", file=sys.stderr)
                    continue
                known[call].append(Judged(round(found.seconds * 1e6, 2), f"{call.kernel}, {wanted.title()}", round(gigaop, 3)))
        return known[call]

    return judge


def _with_attention_aside(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with attention as an op that nothing knows more of than its shapes: as attention of libraries, it takes and
    gives heads behind places."""
    from unittest import mock

    @torch.library.custom_op("peers::attention", mutates_args=())
    def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    @attention.register_fake
    def _(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        batch, heads, length, deep = query.shape
        return query.new_empty((batch, length, heads, deep)).transpose(1, 2)

    def run(*given: Any) -> Any:
        taken = mock.patch("networks.scaled_dot_product_attention", lambda query, key, value, **_: attention(query, key, value))
        with taken:
            return function(*given)

    return run


def judged(machine: Machine, only: str, most: int) -> dict[str, Any]:
    """Inductor's networks on a machine, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "peers.json")
        words = ["--only", only, "--most", str(most), "--peer", machine.name, str(path)]
        subprocess.run([sys.executable, "-W", "ignore", __file__, *words], check=True)
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found


def judge_here(machine: Machine, listed: Sequence[Network], most: int) -> dict[str, Any]:
    """Inductor's networks, by name; this process pretends to have the machine from now on."""
    import faked
    import inductor

    faked.pretend(machine)
    inductor.configure()
    found = {}
    for network in listed:
        started = time.monotonic()
        found[network.name] = attempted(lambda network=network: peer_of(network, machine, most))  # type: ignore[misc]
        shown = found[network.name].get("us") or found[network.name]["refused"]
        print(f"Inductor on {machine.name}: {network.name}: {shown} ({time.monotonic() - started:.0f} s)", file=sys.stderr, flush=True)
    return found


def attempted(sum_up: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A network's sum, or why there is none."""
    try:
        return sum_up()
    except NotEstimated as error:
        return {"refused": str(error)}


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as markdown."""
    lines = ["| network | machine | ours us | launches | Inductor us | launches | ratio |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        shown = [row["network"], row["machine"]]
        for side in (row["ours"], row["peer"]):
            shown += [side.get("us", side.get("refused")), side.get("launches", "")]
        shown.append(row.get("ratio", ""))
        lines.append("| " + " | ".join(map(str, shown)) + " |")
    return "\n".join(lines)


def page(rows: Sequence[dict[str, Any]], most: int) -> str:
    """The page of the results."""
    return "\n\n".join(
        (
            "# Networks estimated without a GPU",
            "Sums of estimated times of kernels ([how](../../docs/kernels.md)), weights in bf16; Inductor's over ours: above 1 ours is "
            f"faster. Inductor has each kernel at the best of {most} choices of templates and of all its configurations, and attention "
            "as the best kernel of others for the shape (the tutorial's for prompts, conch's paged attention for the next token).",
            table(rows),
        )
    )


def main() -> int:
    """Judge, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="networks whose name has the word; nothing is written")
    parser.add_argument("--most", type=int, default=MOST, help=f"choices of templates of Inductor that are tried (usual: {MOST})")
    parser.add_argument("--peer", nargs=2, metavar=("MACHINE", "FILE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    listed = chosen(parser, [arguments.only], networks(), lambda each: each.name)
    if arguments.peer is not None:
        name, path = arguments.peer
        Path(path).write_text(json.dumps(judge_here(MACHINES[name], listed, arguments.most)), encoding="utf-8")
        return 0
    rows = []
    for name in ESTIMATED:
        peers = judged(MACHINES[name], arguments.only, arguments.most)
        for network in listed:
            own = attempted(lambda network=network, name=name: ours_of(network, MACHINES[name]))  # type: ignore[misc]
            row = {"network": network.name, "machine": name, "ours": own, "peer": peers[network.name]}
            if "us" in row["ours"] and "us" in row["peer"]:
                row["ratio"] = round(row["peer"]["us"] / row["ours"]["us"], 3)
            rows.append(row)
    print(table(rows))
    if not arguments.only:
        (RESULTS / "end_to_end.json").write_text(json.dumps({"most": arguments.most, "rows": rows}, indent=1) + "\n", encoding="utf-8")
        (RESULTS / "end_to_end.md").write_text(page(rows, arguments.most) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
