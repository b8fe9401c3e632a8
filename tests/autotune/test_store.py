"""Stores lose nothing, whoever writes at once, and take nothing that is damaged."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
from pathlib import Path

import pytest

from ourcc.autotune.record import Failure, Record, RecordError, Sample, Trial, canonical, decode, digest, encode, merge, parse_schedule
from ourcc.autotune.store import open_store
from ourcc.ir.errors import UsageError
from ourcc.passes.tile.schedule import Schedule

PROBLEM = {"region": "region @region() -> %y0: f32[4] {\n}\n", "symbols": {}, "layouts": {}, "constants": [], "bucket": {"N0": 128}}
ENVIRONMENT = {
    "architecture": "x86-64-v4",
    "device": "cpu",
    "features": ["fma"],
    "compiler": "cc 1",
    "producer": "ourcc 0",
    "policy": {"rounds": 9},
}
PACKED = Schedule("packed", (("m", 96), ("n", 256)))
NEST = Schedule("nest", (("vectors", 4),))


def record(*trials: Trial, **environment: str) -> Record:
    return Record(PROBLEM, {**ENVIRONMENT, **environment}, trials)


def sample(number: int, time: int = 1000) -> Sample:
    return Sample(f"{number:016x}", (time, time + 1))


def test_a_record_reads_back_and_its_id_is_of_problem_and_environment() -> None:
    one = record(Trial(NEST, (sample(1),)), Trial(PACKED, (), (Failure("unsupported", "too big"),)))
    assert decode(encode(one)) == one
    assert record().id == one.id != record(compiler="cc 2").id
    assert parse_schedule(str(PACKED)) == PACKED


def test_merging_is_a_union() -> None:
    parts = [record(Trial(PACKED, (sample(n),)), Trial(NEST, (sample(n % 2),))) for n in range(3)]
    whole = encode(merge(parts))
    for order in itertools.permutations(parts):
        assert encode(merge([merge(order[:2]), *order[1:], *order])) == whole
    many = [record(Trial(PACKED, (sample(n),))) for n in range(50)]
    assert encode(merge([merge(many[:30]), merge(many[20:])])) == encode(merge(many))
    with pytest.raises(RecordError, match="cannot merge records of 2 ids"):
        merge([record(), record(compiler="cc 2")])


def damaged(change: dict[str, object]) -> bytes:
    """A record whose digest is right and whose content is not."""
    body = json.loads(encode(record(Trial(PACKED, (sample(1),)))))
    del body["digest"]
    body |= change
    if "problem" in change or "environment" in change:
        body["id"] = digest({"problem": body["problem"], "environment": body["environment"]})
    return canonical({**body, "digest": digest(body)})


CASES = {
    "not json": b"{",
    "holds other bytes": encode(record()).replace(b"cc 1", b"cc 3"),
    "has schema 2": damaged({"schema": 2}),
    "filed under the id": damaged({"id": "0" * 64}),
    "expected the keys": damaged({"extra": 1}),
    "candidates: got dict": damaged({"candidates": {}}),
    "got 'm', expected name=number": damaged({"candidates": [{"schedule": "packed{m}", "samples": [], "failures": []}]}),
    "expected strategy": damaged({"candidates": [{"schedule": "../x", "samples": [], "failures": []}]}),
    "outside 1..": damaged(
        {"candidates": [{"schedule": "a", "samples": [{"run": "0" * 16, "picoseconds": [0], "deviation": 0}], "failures": []}]}
    ),
    "got deviation": damaged(
        {"candidates": [{"schedule": "a", "samples": [{"run": "0" * 16, "picoseconds": [1], "deviation": -1}], "failures": []}]}
    ),
    "got kind": damaged({"candidates": [{"schedule": "a", "samples": [], "failures": [{"kind": "evil", "reason": ""}]}]}),
    "some twice": damaged({"candidates": [{"schedule": "a", "samples": [], "failures": []}] * 2}),
    "what canonical json cannot": encode(record(Trial(PACKED, (sample(1),)))).replace(b'"deviation":0.0', b'"deviation":1e999'),
    "policy: got other": damaged({"environment": {**ENVIRONMENT, "policy": {"rounds": 1.5}}}),
    "constants: got dict": damaged({"problem": {**PROBLEM, "constants": {}}}),
    "other than sizes": damaged({"problem": {**PROBLEM, "bucket": {"N0": -1}}}),
    "got symbols": damaged({"problem": {**PROBLEM, "symbols": []}}),
    "architecture: got int": damaged({"environment": {**ENVIRONMENT, "architecture": 1}}),
    "policy: got": damaged({"environment": {**ENVIRONMENT, "policy": {"a": [1]}}}),
    "expected at most 4194304": b" " * (4 << 20) + b"{}",
}


@pytest.mark.parametrize("message", CASES)
def test_what_is_damaged_is_refused(message: str) -> None:
    said = {"holds other bytes": "digest does not match"}.get(message, message)
    with pytest.raises(RecordError) as caught:
        decode(CASES[message])
    assert said in str(caught.value)


@pytest.mark.parametrize("cut", range(0, 400, 13))
def test_every_truncation_and_flip_is_refused(cut: int) -> None:
    data = encode(record(Trial(PACKED, (sample(1),))))
    with pytest.raises(RecordError):
        decode(data[:cut])
    flipped = bytearray(data)
    flipped[cut] ^= 1
    with pytest.raises(RecordError):
        decode(bytes(flipped))


def address(kind: str, folder: Path) -> str:
    return str(folder / "store") if kind == "folder" else f"memory://{folder.name}"


@pytest.mark.parametrize("kind", ["folder", "fsspec"])
def test_stores_get_put_list_delete(kind: str, tmp_path: Path) -> None:
    store = open_store(address(kind, tmp_path))
    assert store.get(record().id) is None
    assert list(store.list()) == []
    store.put(record(Trial(PACKED, (sample(1),))))
    store.put(record(Trial(PACKED, (sample(2),))))
    store.put(record(Trial(PACKED, (sample(2),))))
    store.put(record(Trial(NEST), compiler="cc 2"))
    again = open_store(address(kind, tmp_path))
    found = again.get(record().id)
    assert found is not None
    assert found.trials == (Trial(PACKED, (sample(1), sample(2))),)
    assert len(list(again.list())) == 2
    assert again.size()[:2] == (2, 2)
    assert again.delete(record().id) == 1
    assert again.get(record().id) is None


def test_a_damaged_object_is_a_miss_with_a_note(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.put(record(Trial(PACKED, (sample(1),))))
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-40])
    assert store.get(record().id) is None
    assert "is passed over" in store.notes[0]
    assert [name for _, name, _ in store.damaged()] == [file.name.split(".")[1]]
    store.put(record(Trial(PACKED, (sample(2),))))
    found = store.get(record().id)
    assert found is not None
    assert found.trials[0].samples == (sample(2),)


def test_links_and_other_names_in_a_folder_are_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(encode(record()))
    folder = tmp_path / "store"
    folder.mkdir()
    (folder / f"{record().id}.{'0' * 16}.json").symlink_to(secret)
    (folder / "readme.txt").write_text("hello")
    os.mkfifo(folder / f"{record().id}.{'1' * 16}.json")
    assert open_store(str(folder)).get(record().id) is None


def write_many(folder: str, worker: int, barrier: object) -> None:
    store = open_store(folder)
    barrier.wait()  # type: ignore[attr-defined]
    for n in range(6):
        store.put(record(Trial(PACKED, (sample(worker * 6 + n),))))


def test_concurrent_writers_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(4)
    writers = [context.Process(target=write_many, args=(str(tmp_path), n, barrier)) for n in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(30)
        assert writer.exitcode == 0
    store = open_store(str(tmp_path))
    found = store.get(record().id)
    assert found is not None
    assert [s.run for s in found.trials[0].samples] == [f"{n:016x}" for n in range(24)]
    assert not store.notes
    store.put(record())
    assert len(list(tmp_path.iterdir())) == 1


def test_a_store_that_cannot_be_written_says_so_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(str(tmp_path))

    def full(descriptor: int) -> None:
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        store.put(record())
    assert list(tmp_path.iterdir()) == []


def test_an_address_that_nothing_knows_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="cannot be opened"):
        open_store("nonsense://x")


class FakeRedis:
    """As much of a server as the store uses."""

    def __init__(self) -> None:
        self.hashes: dict[str, dict[bytes, bytes]] = {}

    def hset(self, key: str, name: str, data: bytes) -> None:
        self.hashes.setdefault(key, {})[name.encode()] = data

    def hgetall(self, key: str) -> dict[bytes, bytes]:
        return dict(self.hashes.get(key, {}))

    def hkeys(self, key: str) -> list[bytes]:
        return list(self.hashes.get(key, {}))

    def hdel(self, key: str, *names: str) -> None:
        for name in names:
            self.hashes[key].pop(name.encode(), None)

    def scan_iter(self, match: str, count: int) -> list[bytes]:
        return [key.encode() for key, value in self.hashes.items() if value]


def test_redis_through_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    import types

    from ourcc.autotune.objects import Redis
    from ourcc.autotune.store import RecordStore

    module = types.ModuleType("redis")
    module.RedisError = type("RedisError", (Exception,), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "redis", module)
    store = RecordStore(Redis("redis://user:secret@host/0", FakeRedis()))
    assert store.name == "redis://host/0"
    store.put(record(Trial(PACKED, (sample(1),))))
    store.put(record(Trial(PACKED, (sample(2),))))
    assert [len(r.trials[0].samples) for r in store.list()] == [2]
    assert store.size()[1] == 1
    assert store.delete(record().id) == 1


def test_redis_without_its_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from ourcc.ir.errors import ToolchainError

    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ToolchainError, match="needs redis, which is not installed"):
        open_store("redis://localhost")


def test_an_object_under_another_name_is_damaged(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.put(record())
    (file,) = tmp_path.iterdir()
    file.rename(tmp_path / f"{record().id}.{'0' * 16}.json")
    assert [why.message for _, _, why in store.damaged()] == ["record is damaged: its name is not its digest"]


def test_a_file_system_that_only_reads_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    def refuse(*arguments: object, **options: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", refuse)
    with pytest.raises(OSError, match=r"store memory://.* cannot be written"):
        open_store(f"memory://{tmp_path.name}").put(record())


def test_a_redis_that_refuses_is_a_failed_connection_without_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    import types

    from ourcc.autotune.objects import Redis

    module = types.ModuleType("redis")
    module.RedisError = type("RedisError", (Exception,), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "redis", module)

    class Refusing:
        def __getattr__(self, name: str) -> object:
            def call(*arguments: object, **options: object) -> None:
                raise module.RedisError("user:secret@host")

            return call

    backend = Redis("redis://user:secret@host/0", Refusing())
    with pytest.raises(ConnectionError, match=r"^redis refused hgetall: RedisError$"):
        backend.read("0" * 64)
    with pytest.raises(ConnectionError, match=r"^redis refused scan: RedisError$"):
        backend.names()
