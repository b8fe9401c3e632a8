"""Whole networks beside Inductor's: what it launches for one, that each kernel is taken at its best, and the tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from .scripts import BENCHMARKS, KERNELS, script

end_to_end, networks, inductor = (script(name, KERNELS) for name in ("end_to_end", "networks", "inductor"))

SMALL = """
import json, sys
sys.path.insert(0, sys.argv[1])
import torch, end_to_end, faked, inductor, networks
from machines import MACHINES
machine = MACHINES["H100"]
faked.pretend(machine)
inductor.configure()
shape = (2, 2, 128, 64)
attention = networks.Problem("attention prefill", "small", torch.nn.Identity, (shape, shape, shape), torch.bfloat16)
small = networks.Network("small", lambda: networks.Encoder(2, 128, 2, 256, 128, 100).bfloat16(), ((2, 128),), attention, ids=True)
print(json.dumps([end_to_end.peer_of(small, machine, most) for most in (1, 2)]))
"""


def test_inductors_network_is_the_sum_of_its_kernels_at_their_best(tmp_path: Path) -> None:
    environment = {**os.environ, "OURCC_CACHE_DIR": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path / "triton")}
    command = [sys.executable, "-W", "ignore", "-c", SMALL, str(KERNELS)]
    said = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280, check=True).stdout
    one, two = json.loads(said.splitlines()[-1])
    # A layer: three products, attention, a product, a norm, a product, a product, a norm; and the norm of the embedding.
    assert one["launches"] == two["launches"] == len(one["kernels"]) == 1 + 2 * 9
    assert sum("attention" in row["kernel"] for row in one["kernels"]) == 2
    assert one["us"] == pytest.approx(sum(row["us"] for row in one["kernels"]), abs=0.1)
    # No kernel is shorter than its start, and more choices make none longer.
    assert all(row["us"] > 3 for row in one["kernels"]) and two["us"] <= one["us"]


def test_calls_are_known_by_kernel_and_numbers() -> None:
    text = "\n".join(
        (
            "kernel_0 = async_compile.triton('kernel_0', '''\nsource\n''', device_str='cuda')",
            "        kernel_0.run(arg0_1, buf0, 4, 128, stream=stream0)",
            "        buf1 = torch.ops.peers.attention.default(buf0, buf0, buf0)",
            "        kernel_0.run(buf1, buf2, 4, 128, stream=stream0)",
        )
    )
    first, second = inductor.calls_of(text)
    assert first == second == inductor.Call("kernel_0", "\nsource\n", ("4", "128"))
    assert inductor.LIBRARY.findall(text) == [end_to_end.ATTENTION]


def test_the_work_of_a_product_stands_in_its_source() -> None:
    assert end_to_end.needed("    M = 16\n    N = 4096\n    K = 1024\n    if M * N == 0:\n") == 2 * 16 * 4096 * 1024 / 1e9
    assert end_to_end.needed("    xnumel = 16\n") == 0


def test_what_is_faster_than_matrix_units_is_not_believed() -> None:
    network, machine = networks.networks()[3], end_to_end.MACHINES["B200"]
    # Products of 2,048 rows with 218 million weights, and the half of 4,096 x 2,048 x 2,048 twice.
    assert end_to_end.operations(network) == 2 * 2048 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336) + 2 * 2048**2 * 4096
    with pytest.raises(end_to_end.NotEstimated, match=r"estimated at 342 us, below the 3\d\d us that matrix units need"):
        end_to_end.summed(network, machine, [{"kernel": "all", "us": 342.0}])
    assert end_to_end.summed(network, machine, [{"kernel": "all", "us": 500.0}])["us"] == 500


def test_a_token_after_a_prompt_is_the_prompts_last() -> None:
    torch.manual_seed(0)
    whole = networks.Prefill(64, 4, 2, 96)
    step = networks.Decode(64, 4, 2, 96)
    step.load_state_dict(whole.state_dict())
    x, cosine, sine = torch.randn(1, 9, 64), *(torch.randn(9, 16) for _ in range(2))
    with torch.no_grad():
        wanted, keys, values = whole(x, cosine, sine)
        found, key, value = step(x[:, -1:], cosine[-1:], sine[-1:], keys, values)
    torch.testing.assert_close(found, wanted[:, -1:])
    torch.testing.assert_close(key, keys[:, :, -1:])
    torch.testing.assert_close(value, values[:, :, -1:])


def test_the_written_page_is_that_of_the_written_results() -> None:
    results = json.loads((BENCHMARKS / "results" / "end_to_end.json").read_text(encoding="utf-8"))
    assert (BENCHMARKS / "results" / "end_to_end.md").read_text(encoding="utf-8") == end_to_end.page(
        results["rows"], results["most"]
    ) + "\n"
    names = [network.name for network in networks.networks()]
    assert [(row["network"], row["machine"]) for row in results["rows"]] == [
        (name, each) for each in end_to_end.ESTIMATED for name in names
    ]
    for row in results["rows"]:
        for side in ("ours", "peer"):
            if "us" in row[side]:
                assert row[side]["us"] == pytest.approx(sum(each["us"] for each in row[side]["kernels"]), abs=0.1)
        if "ratio" in row:
            assert row["ratio"] == round(row["peer"]["us"] / row["ours"]["us"], 3)
