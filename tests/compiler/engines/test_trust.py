"""Whom commands trust: keys from files, engines and locks and records that are refused, and code that is never run."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import ourcc
from ourcc.autotune.record import Record, RecordError, Sample, Trial, merge
from ourcc.autotune.signed import seal, unseal
from ourcc.autotune.store import open_store
from ourcc.compiler.cli.main import run
from ourcc.compiler.engines.trust import Trust
from ourcc.ir.errors import EngineError, UsageError
from ourcc.passes.tile.schedule import Schedule
from ourcc.runtime import Engine, EngineContents, sign, write_engine
from ourcc.runtime.contents import LIBRARY

PRIVATE = {name: Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number, name in enumerate(("ours", "other"))}
OURS, OTHER = (key.private_bytes_raw() for key in PRIVATE.values())
OUR_KEY, OTHER_KEY = (key.public_key().public_bytes_raw() for key in PRIVATE.values())


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_at: Callable[[Path], str]) -> Path:
    """A cache of its own."""
    monkeypatch.setenv("OURCC_CACHE_DIR", cache_at(tmp_path / "cache"))
    monkeypatch.delenv("OURCC_CACHE", raising=False)
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def contents() -> EngineContents:
    """A compiled model of one matrix product."""
    return ourcc.build(_model(), tune="off", targets=["native"]).contents


def _model() -> Any:
    from onnx import TensorProto, helper, numpy_helper

    weight = numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(4, 3), "w")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, size]) for name, size in (("x", 4), ("y", 3)))
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, Path]:
    """Key files in every form."""
    files = {}
    for name, key in PRIVATE.items():
        files[name] = tmp_path / f"{name}.pem"
        plain = serialization.NoEncryption()
        files[name].write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
        files[f"{name}.pub"] = tmp_path / f"{name}.pub"
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        files[f"{name}.pub"].write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, form))
    return files


# --- keys -------------------------------------------------------------------------------------------------------------


def test_keys_are_read_in_every_form(tmp_path: Path, keys: dict[str, Path]) -> None:
    for data in (OUR_KEY, OUR_KEY.hex().encode() + b"\n", keys["ours.pub"].read_bytes()):
        (tmp_path / "key").write_bytes(data)
        assert Trust.of([tmp_path / "key"]).keys == (OUR_KEY,)
    assert Trust.of([], keys["ours"]).signing_key == OURS
    assert Trust.of([]).keys is None
    assert OURS.hex() not in repr(Trust.of([], keys["ours"])) and repr(OURS) not in repr(Trust.of([], keys["ours"]))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "key is not a public ed25519 key, expected 32 raw bytes, 64 hex digits, or PEM"),
        (b"ab" * 31, "is not a public ed25519 key"),
        (b"-----BEGIN PUBLIC KEY-----\nxx\n-----END PUBLIC KEY-----\n", "is not a public ed25519 key: "),
    ],
)
def test_a_file_that_is_no_key_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "key").write_bytes(data)
    with pytest.raises(UsageError, match=message):
        Trust.of([tmp_path / "key"])


def test_a_key_of_another_kind_is_refused(tmp_path: Path, keys: dict[str, Path]) -> None:
    from cryptography.hazmat.primitives.asymmetric import x25519

    form = serialization.PublicFormat.SubjectPublicKeyInfo
    foreign = x25519.X25519PrivateKey.generate().public_key().public_bytes(serialization.Encoding.PEM, form)
    (tmp_path / "key").write_bytes(foreign)
    with pytest.raises(UsageError, match="key is a key of another kind, expected ed25519"):
        Trust.of([tmp_path / "key"])
    # A private key is not taken where a public one belongs: it should not lie there.
    with pytest.raises(UsageError, match="is not a public ed25519 key"):
        Trust.of([keys["ours"]])


# --- engines ----------------------------------------------------------------------------------------------------------


def commands(engine: Path, model: Path, x: Path, out: Path) -> dict[str, list[str]]:
    """Every command that opens an engine."""
    return {
        "run": ["run", str(engine), "--input", f"x={x}"],
        "bench": ["bench", str(engine), "--rounds", "1"],
        "verify": ["verify", str(engine), str(model)],
        "inspect": ["inspect", str(engine)],
        "inspect --ir": ["inspect", str(engine), "--ir", "simplify"],
        "tune": ["tune", str(engine), "--budget", "1", "-o", str(out)],
        "build --rebuild": ["build", str(engine), "--rebuild", "--tune", "off", "-o", str(out)],
        "build --locked": ["build", str(model), "--locked", str(engine), "-o", str(out)],
        "cache why": ["cache", "why", f"{engine}:kernel_0"],
    }


@pytest.mark.parametrize("name", list(commands(*[Path()] * 4)))
def test_every_command_that_opens_an_engine_takes_trusted_keys(
    name: str, tmp_path: Path, keys: dict[str, Path], contents: EngineContents, capsys: pytest.CaptureFixture[str]
) -> None:
    import onnx

    onnx.save(_model(), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.ones((2, 4), np.float32))
    engine, out = tmp_path / "m.ourcc", tmp_path / "out.ourcc"
    arguments = [*commands(engine, tmp_path / "m.onnx", tmp_path / "x.npy", out)[name], "--trusted-key", str(keys["ours.pub"])]
    for signing_key, message in ((None, "engine is not signed"), (OTHER, "which is not among the trusted keys")):
        write_engine(engine, contents, signing_key=signing_key)
        assert run(arguments) == 1
        assert message in capsys.readouterr().err and not out.exists()
    write_engine(engine, contents, signing_key=OURS)
    assert run(arguments) == 0, capsys.readouterr().err


def test_an_empty_list_trusts_nobody(tmp_path: Path, contents: EngineContents) -> None:
    write_engine(tmp_path / "m.ourcc", contents, signing_key=OURS)
    assert ourcc.load(tmp_path / "m.ourcc", trusted_keys=[OUR_KEY])
    assert ourcc.load(tmp_path / "m.ourcc", trusted_keys=None)
    with pytest.raises(EngineError, match="which is not among the trusted keys"):
        ourcc.load(tmp_path / "m.ourcc", trusted_keys=[])


def test_the_signature_covers_the_weights(tmp_path: Path, contents: EngineContents) -> None:
    big = replace(contents, weights={**contents.weights, "spare": {"w": _constant(np.zeros(1 << 20, np.float32))}})
    write_engine(tmp_path / "m.ourcc", big, signing_key=OURS)
    data = bytearray((tmp_path / "m.ourcc").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "m.ourcc").write_bytes(data)
    with pytest.raises(EngineError, match=r"weights/spare.safetensors does not match its digest"):
        ourcc.load(tmp_path / "m.ourcc", trusted_keys=[OUR_KEY])


def _constant(array: Any) -> Any:
    from ourcc.runtime import Constant

    return Constant.of(array)


def test_build_and_tune_sign(tmp_path: Path, keys: dict[str, Path]) -> None:
    import onnx

    onnx.save(_model(), tmp_path / "m.onnx")
    engine = tmp_path / "m.ourcc"
    assert run(["build", str(tmp_path / "m.onnx"), "-o", str(engine), "--tune", "off", "--signing-key", str(keys["ours"])]) == 0
    assert ourcc.load(engine, trusted_keys=[OUR_KEY])
    assert run(["tune", str(engine), "--budget", "1", "--signing-key", str(keys["other"])]) == 0
    assert ourcc.load(engine, trusted_keys=[OTHER_KEY])


def test_a_lock_of_its_own_is_not_signed(tmp_path: Path, keys: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    import onnx

    onnx.save(_model(), tmp_path / "m.onnx")
    (tmp_path / "ourcc.lock").write_text("{}")
    arguments = ["build", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "m.ourcc"), "--locked", str(tmp_path / "ourcc.lock")]
    assert run([*arguments, "--trusted-key", str(keys["ours.pub"])]) == 1
    assert "ourcc.lock' is not signed, expected a signature by a trusted key" in capsys.readouterr().err


# --- code -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def trap(tmp_path: Path, contents: EngineContents) -> tuple[Path, Path]:
    """An engine whose libraries write a file as soon as they are opened, and that file."""
    mark = tmp_path / "it_ran"
    source = f'#include <stdio.h>\n__attribute__((constructor)) static void start(void) {{ fclose(fopen("{mark}", "w")); }}\n'
    (tmp_path / "trap.c").write_text(source)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", "trap.so", "trap.c"], check=True, cwd=tmp_path)
    ((name, part),) = contents.parts.items()
    files = {**part.files, LIBRARY: (tmp_path / "trap.so").read_bytes()}
    write_engine(tmp_path / "trap.ourcc", replace(contents, parts={name: replace(part, files=files)}))
    return tmp_path / "trap.ourcc", mark


def test_looking_at_an_engine_never_runs_its_code(trap: tuple[Path, Path], tmp_path: Path) -> None:
    engine, mark = trap
    for options in ([], ["--kernels"], ["--memory"], ["--precision"], ["--ir", "simplify"], ["--target", "cpu"], ["--json"]):
        assert run(["inspect", str(engine), *options]) == 0
    assert run(["inspect", str(engine), "--source", "nothing"]) == 2
    assert run(["cache", "why", f"{engine}:kernel_0"]) in (0, 2)
    assert run(["cache", "ls"]) == 0
    assert run(["doctor"]) == 0
    # Building the program again takes none of the old code along.
    assert run(["build", str(engine), "--rebuild", "--tune", "off", "-o", str(tmp_path / "again.ourcc")]) == 0
    assert not mark.exists()
    with pytest.raises(EngineError):
        ourcc.load(engine)
    assert mark.exists(), "the trap does not work"


def test_an_engine_that_was_just_built_is_loaded_by_its_first_call(trap: tuple[Path, Path], contents: EngineContents) -> None:
    from ourcc.runtime import read_engine

    engine = Engine(read_engine(trap[0]), must_run=False)
    assert engine.target == "cpu" and not trap[1].exists()
    with pytest.raises(EngineError):
        engine(np.ones((2, 4), np.float32))
    assert trap[1].exists()
    good = Engine(contents, must_run=False)
    assert np.array_equal(good(np.ones((2, 4), np.float32)), np.ones((2, 4), np.float32) @ np.arange(12, dtype=np.float32).reshape(4, 3))


# --- records ----------------------------------------------------------------------------------------------------------

REGION = """region @region(%x0: f32[i 64, k 64]) -> %y0: f32[i 64] {
  axes i: 64, k: 64
  %t0 = sum k: mul(%x0[i, k], %x0[i, k]) : f32[i]
  %y0[i] = add(%t0, %t0)
}
"""
ENVIRONMENT = {
    **{"architecture": "x86-64-v4", "device": "cpu", "features": ["fma"], "compiler": "cc 1", "producer": "ourcc 0"},
    "policy": {"rounds": 9},
}


def record(number: int, time: int = 10_000_000, region: str = REGION) -> Record:
    problem = {"region": region, "symbols": {}, "layouts": {}, "constants": [], "bucket": {}}
    return Record(problem, ENVIRONMENT, (Trial(Schedule("nest", (("vectors", 4),)), (Sample(f"{number:016x}", (time,)),)),))


def runs(found: Record | None) -> list[int]:
    return [] if found is None else sorted(int(sample.run, 16) for trial in found.trials for sample in trial.samples)


def test_a_sealed_record_reads_back_and_every_change_is_refused() -> None:
    data = seal(record(1), OURS)
    assert unseal(data, record(1).id, frozenset([OUR_KEY]))[0] == record(1)
    assert unseal(seal(record(1)))[1] is None
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1
        with pytest.raises(RecordError):
            unseal(bytes(changed), None, frozenset([OUR_KEY]))
    with pytest.raises(RecordError, match="record is not signed, expected a signature by a trusted key"):
        unseal(seal(record(1)), None, frozenset([OUR_KEY]))
    with pytest.raises(RecordError, match=f"record is signed by {OTHER_KEY.hex()}, which is not among the trusted keys"):
        unseal(seal(record(1), OTHER), None, frozenset([OUR_KEY]))
    moved = seal(record(2)) + data[len(seal(record(1))) :]
    with pytest.raises(RecordError, match="changed after it was signed"):
        unseal(moved, None, frozenset([OUR_KEY]))
    # Also where no signature is asked for: one that does not fit shows damage.
    with pytest.raises(RecordError, match="changed after it was signed"):
        unseal(moved)


def test_signers_share_a_record_and_none_takes_anothers_away(tmp_path: Path) -> None:
    url = str(tmp_path / "team")
    for number, key in enumerate((None, OURS, OTHER, OURS, None)):
        open_store(url, signing_key=key).put(record(number))
    plain = open_store(url)
    assert runs(plain.get(record(0).id)) == [0, 1, 2, 3, 4] and plain.size()[1] == 3
    assert runs(open_store(url, frozenset([OUR_KEY])).get(record(0).id)) == [1, 3]
    assert runs(open_store(url, frozenset([OUR_KEY, OTHER_KEY])).get(record(0).id)) == [1, 2, 3]
    assert open_store(url, frozenset()).get(record(0).id) is None
    again = open_store(url, signing_key=OURS)
    assert runs(again.put(record(3))) == [0, 1, 2, 3, 4] and again.size()[1] == 3


def test_records_travel_signed(tmp_path: Path, cache: Path, keys: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    local, team, trusted = str(cache / "records"), str(tmp_path / "team"), ["--trusted-key", str(keys["ours.pub"])]
    open_store(local).put(record(1))
    assert run(["cache", "push", team, "--signing-key", str(keys["ours"])]) == 0
    open_store(team).put(record(2))
    open_store(team, signing_key=OTHER).put(record(3))
    capsys.readouterr()
    assert run(["cache", "pull", team, *trusted, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["records"] == 1 and said["refused"] == 2
    assert "record is not signed" in json.dumps(said) and "not among the trusted keys" in json.dumps(said)
    assert runs(open_store(local).get(record(1).id)) == [1]
    assert run(["cache", "verify", team]) == 0
    capsys.readouterr()
    assert run(["cache", "verify", team, *trusted, "--json"]) == 3
    told = json.loads(capsys.readouterr().out)
    assert told["damaged"] == 0 and len(told["unbelieved"]) == 2
    assert all(row["why"].startswith(("record is not signed", "record is signed by")) for row in told["unbelieved"])
    assert run(["cache", "merge", team, str(tmp_path / "copy"), *trusted, "--signing-key", str(keys["other"])]) == 0
    assert runs(open_store(str(tmp_path / "copy"), frozenset([OTHER_KEY])).get(record(1).id)) == [1]
    assert run(["cache", "pull", team]) == 0
    assert runs(open_store(local).get(record(1).id)) == [1, 2, 3]


def test_exports_are_signed_and_imports_refuse(
    tmp_path: Path, cache: Path, keys: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, trusted = str(tmp_path / "records.json"), ["--trusted-key", str(keys["ours.pub"])]
    open_store(str(cache / "records")).put(record(1))
    assert run(["cache", "export", file]) == 0
    capsys.readouterr()
    assert run(["cache", "import", file, *trusted, "--json"]) == 1
    error = json.loads(capsys.readouterr().out)["error"]
    assert "none of 1 records is imported" in error["message"] and "line 1: record is not signed" in error["note"]
    assert run(["cache", "export", file, "--signing-key", str(keys["ours"])]) == 0
    monkeypatch.setenv("OURCC_CACHE_DIR", str(tmp_path / "elsewhere"))
    assert run(["cache", "import", file, *trusted]) == 0
    assert runs(open_store(str(tmp_path / "elsewhere" / "records")).get(record(1).id)) == [1]


def test_imports_leave_out_what_is_not_signed_and_take_the_rest(
    tmp_path: Path, cache: Path, keys: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever the order of the lines: each that a trusted key signed is imported, each other is named."""
    import random

    trusted = ["--trusted-key", str(keys["ours.pub"])]
    for seed in range(8):
        choices = random.Random(seed)
        signers = {number: choices.choice((OURS, OTHER, None)) for number in range(1, 7)}
        lines = [seal(record(number), key) for number, key in signers.items()]
        damaged = choices.choice((None, choices.randrange(len(lines))))
        text = [b"{}" if number == damaged else line for number, line in enumerate(lines)]
        (tmp_path / "records").write_bytes(b"".join(line + b"\n" for line in text))
        whole = len(lines) if damaged is None else damaged
        taken = [number for number in range(whole) if signers[number + 1] == OURS]
        capsys.readouterr()
        status = run(["cache", "import", str(tmp_path / "records"), *trusted, "--json"])
        said = json.loads(capsys.readouterr().out)
        if damaged is None and not taken:
            assert status == 1 and f"none of {whole} records is imported" in said["error"]["message"]
        elif damaged is None:
            assert status == 0 and (said["records"], said["refused"]) == (len(taken), whole - len(taken))
            assert all(f"line {n + 1}: record is" in json.dumps(said) for n in range(whole) if n not in taken)
        else:
            assert status == 1 and f"line {damaged + 1}:" in said["error"]["message"]
            assert said["error"]["hint"] == f"of the lines before it {len(taken)} were imported, and {whole - len(taken)} left out"


def test_builds_take_only_signed_records_from_stores_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ourcc.compiler.backends.tuning import Tuning
    from ourcc.compiler.options import build_options

    (tmp_path / "team").mkdir()  # one that is not there is left out
    monkeypatch.setenv("OURCC_CACHE", f"{tmp_path / 'local'},{tmp_path / 'team'}")
    tuning = Tuning(replace(build_options({}), trust=Trust((OUR_KEY,))))
    assert tuning.shelves is not None and [store.keys for store in tuning.shelves.stores] == [None, frozenset([OUR_KEY])]


def test_times_that_no_machine_reaches_are_refused(tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from ourcc.autotune.plausible import believable, floor

    least = floor(record(1).problem)
    assert least is not None and 100 < least < 100_000
    kept, reasons = believable(merge([record(1, 1), record(2, least), record(3, least - 1)]))
    assert runs(kept) == [2]
    assert reasons[0] == f"nest{{vectors=4}} in 1 ps, expected at least {least} ps: no machine is so fast"
    open_store(str(tmp_path / "team")).put(merge([record(1, 1), record(2)]))
    assert run(["cache", "pull", str(tmp_path / "team"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["refused"] == 1 and "no machine is so fast" in json.dumps(said)
    assert runs(open_store(str(cache / "records")).get(record(1).id)) == [2]


def test_a_region_that_cannot_be_read_has_no_floor() -> None:
    from ourcc.autotune.plausible import believable, floor

    odd = record(1, 1, "region of nothing")
    assert floor(odd.problem) is None and believable(odd) == (odd, [])


# --- files ------------------------------------------------------------------------------------------------------------


def test_saving_over_an_engine_that_runs_leaves_it_its_weights(tmp_path: Path, contents: EngineContents) -> None:
    path = tmp_path / "m.ourcc"
    big = replace(contents, weights={**contents.weights, "spare": {"w": _constant(np.arange(1 << 20))}})
    write_engine(path, big)
    engine = ourcc.load(path)
    inode = os.stat(path).st_ino
    engine.save(path)
    assert os.stat(path).st_ino != inode
    write_engine(path, contents)
    assert np.array_equal(engine.contents.weights["spare"]["w"].array(), np.arange(1 << 20))


def test_loading_remembers_checked_files_in_the_users_cache(
    tmp_path: Path, cache: Path, contents: EngineContents, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ourcc.runtime import checked

    monkeypatch.setattr(checked, "SETTLED", 0)
    big = replace(contents, weights={**contents.weights, "spare": {"w": _constant(np.arange(1 << 20))}})
    write_engine(tmp_path / "m.ourcc", big)
    time.sleep(0.01)
    ourcc.load(tmp_path / "m.ourcc")
    plans, file = sorted((cache / "checked").iterdir(), key=lambda path: not path.name.startswith("plans-"))
    assert plans.name.startswith("plans-") and not file.name.startswith("plans-")


def test_what_is_pushed_is_believed_and_what_is_pulled_is_signed(tmp_path: Path, cache: Path, keys: dict[str, Path]) -> None:
    """Keys mean the same for every way of moving records: a trusted key is asked for what is read, a signing key signs what is written."""
    open_store(str(cache / "records")).put(record(1))
    open_store(str(cache / "records"), signing_key=OURS).put(record(2))
    (tmp_path / "team").mkdir()
    believed = frozenset({sign.public_key(keys["ours.pub"].read_bytes(), "ours")})
    assert run(["cache", "push", str(tmp_path / "team"), "--trusted-key", str(keys["ours.pub"])]) == 0
    assert {each.id for each in open_store(str(tmp_path / "team")).list()} == {record(2).id}
    open_store(str(tmp_path / "team")).put(record(3))
    assert run(["cache", "pull", str(tmp_path / "team"), "--signing-key", str(keys["ours"])]) == 0
    assert record(3).id in {each.id for each in open_store(str(cache / "records"), believed).list()}
