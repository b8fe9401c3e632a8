"""Engine files: deterministic bytes, every flipped byte and every truncation found, hostile archives, failing disks."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import resource
import struct
import subprocess
import sys
import time
import zipfile
import zlib
from dataclasses import replace

import numpy as np
import pytest

from ourcc.ir.errors import EngineError, UsageError
from ourcc.runtime import Engine, EngineContents, Reading, read_engine, write_engine
from ourcc.runtime import replace as replace_module
from ourcc.runtime.archive import Member, directory, local_header, place
from ourcc.runtime.digests import digest_parts
from ourcc.runtime.file import SCHEMA, read_signature


@pytest.fixture
def path(tmp_path, small):
    target = tmp_path / "m.ourcc"
    write_engine(target, small)
    return target


@pytest.fixture(scope="session")
def small(tiny):
    """The miniature engine with short members, so that every byte can be visited."""
    parts = replace(tiny.parts["baseline"], files={"engine.so": b"\x7fELF" * 9, "kernel_0.c": b"/* text */\n"})
    return replace(tiny, parts={"baseline": parts})


def test_it_is_an_ordinary_zip_with_aligned_members(path, small):
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        assert names == [
            *("manifest.json", "graph.ir", "plan/baseline/main.json", "kernels/baseline/engine.so", "kernels/baseline/kernel_0.c"),
            *("weights/shared.safetensors", "ourcc.lock", "report.json"),
        ]
        manifest = archive.read("manifest.json")
        assert archive.comment.decode() == "sha256:" + hashlib.sha256(manifest).hexdigest()
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}
        data = path.read_bytes()
        for info in archive.infolist():
            at = info.header_offset + 30 + sum(struct.unpack("<HH", data[info.header_offset + 26 : info.header_offset + 30]))
            assert at % 4096 == 0 and data[at : at + info.file_size] == archive.read(info)
    assert json.loads(manifest)["provenance"]["source"] == "m.onnx"


def test_contents_come_back_equal(path, small):
    got = read_engine(path, Reading(verify=True))
    for field in ("functions", "inputs", "outputs", "symbols", "graph", "lock", "report", "provenance"):
        assert getattr(got, field) == getattr(small, field), field
    assert got.parts["baseline"].plan == small.parts["baseline"].plan
    assert dict(got.parts["baseline"].files) == small.parts["baseline"].files
    assert dict(got.weights["shared"]) == small.weights["shared"]
    assert "gone" not in got.parts and got.weights.get("gone") is None


def test_weights_are_mapped_and_read_only(path, small):
    array = read_engine(path).weights["shared"]["other"].array()
    assert np.array_equal(array, np.arange(7)) and array.__array_interface__["data"][0] % 64 == 0
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_the_same_contents_give_the_same_bytes(tmp_path, small):
    code = """
import sys, os, time
import numpy as np
from ourcc.ir import dims
from ourcc.ir.plan import Plan
from ourcc.runtime import EngineContents, PartContents, write_engine
names = [f"s{n}" for n in range(40)]
files = {name: name.encode() for name in set(names)}
plan = Plan("cpu", dims.Facts({n: dims.Range(0, 4) for n in names}), (), (), (), (), ())
weights = {"shared": {name: np.arange(3.0) for name in set(names)}}
targets = {"cpu": PartContents({"main": plan}, files)}
write_engine(sys.argv[1], EngineContents.of(targets, weights, provenance={name: 1 for name in set(names)}))
"""
    for seed, zone in (("1", "UTC"), ("2", "Asia/Tokyo")):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "TZ": zone}
        (tmp_path / seed).mkdir()
        subprocess.run(
            [sys.executable, "-c", code, "e.ourcc"], check=True, cwd=tmp_path / seed, env=environment, umask=0o022 if seed == "1" else 0o077
        )
    assert (tmp_path / "1/e.ourcc").read_bytes() == (tmp_path / "2/e.ourcc").read_bytes()


def interesting(data: bytes) -> list[int]:
    """Positions of all bytes but long runs of the padding's zeros, of which a few are taken."""
    return [n for n in range(len(data)) if data[n] or n % 97 == 0 or data[n - 1 : n + 2].strip(b"\0")]


def test_every_flipped_byte_is_found(path):
    data = bytearray(path.read_bytes())
    missed = []
    for position in interesting(bytes(data)):
        data[position] ^= 1 << position % 8
        path.write_bytes(data)
        try:
            read_engine(path)
            missed.append(position)
        except EngineError:
            pass
        data[position] ^= 1 << position % 8
    assert missed == []


def test_every_truncation_is_found(path):
    data = path.read_bytes()
    lengths = {*range(200), *range(0, len(data), 61), *range(len(data) - 1200, len(data))}
    for length in sorted(lengths, reverse=True):
        os.truncate(path, length)
        with pytest.raises(EngineError):
            read_engine(path)
    path.write_bytes(data + b"\0")
    with pytest.raises(EngineError, match="its end holds no digest of a manifest"):
        read_engine(path)


def forge(path, change=None, members=None, raw=None, comment=None):
    """A file whose digests all fit, with a manifest that says something else."""
    members = (
        members if members is not None else [("graph.ir", b"g"), ("plan/cpu/main.json", b"{}"), ("ourcc.lock", b""), ("report.json", b"{}")]
    )
    manifest = {
        **{
            "format": "ourcc engine",
            "schema": SCHEMA,
            "functions": [["main", [], [], []]],
            "bodies": [],
            "symbols": [],
            "parts": [["cpu", "cpu", "x86_64", []]],
            "provenance": {},
        },
        "members": [[name, len(data), zlib.crc32(data), digest_parts([data]), None] for name, data in members],
    }
    if change:
        change(manifest)
    text = raw if raw is not None else json.dumps(manifest).encode()
    placed = place([Member("manifest.json", len(text), zlib.crc32(text)), *(Member(n, len(d), zlib.crc32(d)) for n, d in members)])
    parts = [local_header(placed[0]), text]
    for p, (_, data) in zip(placed[1:], members, strict=True):
        parts += [local_header(p), data]
    tail = directory(placed, ("sha256:" + hashlib.sha256(text).hexdigest()).encode() if comment is None else comment)
    path.write_bytes(b"".join(parts) + tail)
    return path


def test_the_forge_itself_is_accepted(tmp_path):
    assert read_engine(forge(tmp_path / "f")).graph == "g"


def replaced(index, column, value):
    def change(manifest):
        manifest["members"][index][column] = value

    return change


def put(key, value):
    def change(manifest):
        manifest[key] = value

    return change


HOSTILE = [
    (put("format", "other"), "its manifest names another format"),
    (put("schema", 1), f"engine has schema 1, expected {SCHEMA}"),
    (put("schema", "1"), "its manifest names another format"),
    (put("members", 5), "list of members is damaged"),
    (put("members", [["graph.ir", 1, 2]]), "list of members is damaged"),
    (replaced(0, 0, "../graph.ir"), "name '../graph.ir' is not allowed"),
    (replaced(0, 0, "/etc/passwd"), "name '/etc/passwd' is not allowed"),
    (replaced(0, 0, "a\\b"), "is not allowed"),
    (replaced(0, 0, "a/../b"), "is not allowed"),
    (replaced(0, 0, "a\0b"), "is not allowed"),
    (replaced(0, 0, "kernels/" * 32), "is not allowed"),
    (replaced(0, 0, 7), "name 7 is not allowed"),
    (replaced(0, 0, "ourcc.lock"), "names one twice"),
    (replaced(0, 0, "manifest.json"), "names one twice"),
    (replaced(0, 1, -1), "size -1 or checksum"),
    (replaced(0, 1, 2**63), "size 9223372036854775808 or checksum"),
    (replaced(0, 1, 1.5), "size 1.5 or checksum"),
    (replaced(0, 1, 2**40), "engine has [0-9]+ bytes, expected 10995"),
    (replaced(0, 2, 2**32), "checksum 4294967296 of graph.ir is out of range"),
    (replaced(0, 3, 5), "digest of graph.ir is damaged"),
    (replaced(0, 3, "0" * 64), "graph.ir does not match its digest"),
    (replaced(0, 4, ["a", "b"]), "digest of graph.ir is damaged"),
    (replaced(1, 0, "x"), "engine has [0-9]+ bytes, expected|directory of the archive does not match"),
    (replaced(0, 0, "graph.iq"), "directory of the archive does not match the manifest"),
    (put("parts", [["x86-64-v3", "cpu", "x86_64", ["avx2"]]]), "engine has no plan of its function main for its part x86-64-v3"),
    (put("parts", []), "engine has no part"),
    (put("parts", [["a", "cpu", "x86_64", []], ["a", "cpu", "x86_64", []]]), "engine has two parts of one name"),
    (put("parts", [["a", "cpu", 7, []]]), "part 'a' is for 'cpu', 7"),
    (put("parts", [["a", "cpu", "x86_64", [1]]]), "part 'a' is for"),
    (put("parts", {"cpu": 1}), "manifest is damaged: ValueError"),
    (put("functions", [["main", [["x", "f33", []]], [], []]]), "port 'x' has dtype 'f33'"),
    (put("functions", [["main", [["x", "f32", ["__import__('os')"]]], [], []]]), "manifest is damaged: ParseError"),
    (put("functions", []), "engine has no function"),
    (put("functions", [["f", [], [], []], ["f", [], [], []]]), "two functions of one name"),
    (put("functions", [["f", [], []]]), "manifest is damaged: ValueError"),
    (put("functions", [["f", [], [], [7]]]), "function 'f' has the states"),
    (put("functions", [[7, [], [], []]]), "function 7 has the states"),
    (put("symbols", [["B", 1]]), "manifest is damaged: ValueError"),
    (put("provenance", []), "got list, expected an object"),
]


@pytest.mark.parametrize(("change", "message"), HOSTILE, ids=[str(n) for n in range(len(HOSTILE))])
def test_hostile_manifests(tmp_path, change, message):
    with pytest.raises(EngineError, match=message):
        read_engine(forge(tmp_path / "f", change))


def test_hostile_members(tmp_path):
    graph = ("graph.ir", b"g")
    with pytest.raises(EngineError, match=r"engine has no member report.json"):
        read_engine(forge(tmp_path / "f", members=[graph]))
    plan = forge(
        tmp_path / "f",
        put("parts", [["baseline", "cpu", "x86_64", []]]),
        [graph, ("plan/baseline/main.json", b"{}"), ("ourcc.lock", b""), ("report.json", b"{}")],
    )
    with pytest.raises(EngineError, match=r"plan/baseline/main.json is damaged: plan: got no target"):
        read_engine(plan).best.plan  # noqa: B018
    bomb = b"[" * 100_000
    with pytest.raises(EngineError, match="manifest is not valid JSON"):
        read_engine(forge(tmp_path / "f", raw=bomb))
    with pytest.raises(EngineError, match="its manifest names another format"):
        read_engine(forge(tmp_path / "f", raw=b"[]"))
    with pytest.raises(EngineError, match=r"weights member weights/w.bin is not a safetensors file"):
        read_engine(forge(tmp_path / "f", members=[("weights/w.bin", b"")]))
    with pytest.raises(EngineError, match=r"weights/w.safetensors has no digest of its header"):
        read_engine(forge(tmp_path / "f", members=[("weights/w.safetensors", b"12345678")]))
    with pytest.raises(EngineError, match=r"header of weights/w.safetensors does not match its digest"):
        read_engine(forge(tmp_path / "f", replaced(0, 4, [8, "00"]), [("weights/w.safetensors", b"12345678")]))
    with pytest.raises(EngineError, match="its end holds no digest"):
        read_engine(forge(tmp_path / "f", comment=b"sha256:" + b"z" * 64))


@pytest.mark.parametrize("key", ["members", "functions", "parts", "symbols", "bodies"])
@pytest.mark.parametrize("value", [{}, "", 0, None])
def test_lists_of_the_manifest_are_lists(tmp_path, key, value):
    with pytest.raises(EngineError, match="is damaged"):
        read_engine(forge(tmp_path / "f", put(key, value), [("graph.ir", b"g"), ("ourcc.lock", b""), ("report.json", b"{}")]))


@pytest.mark.parametrize("text", [b"{", b"[]", b"\xff", b"[" * 100_000], ids=["cut", "list", "bytes", "deep"])
def test_a_damaged_report_is_told_to_who_reads_it(tmp_path, text):
    members = [("graph.ir", b"g"), ("plan/cpu/main.json", b"{}"), ("ourcc.lock", b""), ("report.json", text)]
    contents = read_engine(forge(tmp_path / "f", members=members))
    assert contents.graph == "g"
    with pytest.raises(EngineError, match=r"report.json is damaged"):
        contents.report["kernels"]


def test_foreign_files(tmp_path, path):
    with pytest.raises(EngineError, match=r"cannot read engine .*gone: No such file"):
        read_engine(tmp_path / "gone")
    with pytest.raises(EngineError, match="not a regular file, expected an engine"):
        read_engine(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(EngineError, match="not a regular file"):
        read_engine(tmp_path / "pipe")
    with pytest.raises(EngineError, match="not a regular file"):
        read_engine("/dev/zero")
    (tmp_path / "text").write_text("hello " * 2000)
    with pytest.raises(EngineError, match="not an engine: got 12000 bytes that do not start as one"):
        read_engine(tmp_path / "text")
    with zipfile.ZipFile(tmp_path / "z.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", "{}" * 9)
        archive.writestr("data", os.urandom(9000))
        archive.comment = b"sha256:" + b"0" * 64
    with pytest.raises(EngineError, match="manifest does not match its digest"):
        read_engine(tmp_path / "z.zip")
    # The same members written by an ordinary archiver: deflated, dated, not aligned.
    with zipfile.ZipFile(path) as good, zipfile.ZipFile(tmp_path / "re.zip", "w", zipfile.ZIP_STORED) as archive:
        for name in good.namelist():
            archive.writestr(name, good.read(name))
        archive.comment = good.comment
    with pytest.raises(EngineError):
        read_engine(tmp_path / "re.zip")


def test_damaged_files_say_what_to_do(path):
    data = bytearray(path.read_bytes())
    data[4096] ^= 1
    path.write_bytes(data)
    with pytest.raises(EngineError, match=r"m.ourcc: manifest does not match its digest") as error:
        Engine.load(path)
    assert error.value.hint == "the file was damaged, cut off or changed after it was written: build or copy it again"


def test_a_manifest_that_claims_more_than_the_file(path):
    data = bytearray(path.read_bytes())
    data[18:22] = b"\xff\xff\xff\xff"
    path.write_bytes(data)
    with pytest.raises(EngineError, match="manifest of 4294967295 bytes does not fit into"):
        read_engine(path)


def test_a_member_changed_after_opening_is_found(path):
    contents = read_engine(path)
    files = contents.best.files
    data = bytearray(path.read_bytes())
    at = data.index(b"/* text */")
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(b"X")
    with pytest.raises(EngineError, match=r"kernels/baseline/kernel_0.c does not match its digest"):
        files["kernel_0.c"]
    os.truncate(path, 100)
    with pytest.raises(EngineError, match="engine ends early"):
        files["kernel_0.c"]


# --- writing ----------------------------------------------------------------------------------------------------------


def test_a_full_disk_leaves_the_old_file(path, small):
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (0, 5000, len(before) - 1):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
        try:
            with pytest.raises(EngineError, match=r"cannot write engine .*m.ourcc: File too large") as error:
                write_engine(path, small)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert error.value.hint == "nothing was changed; free space, or choose another folder"
        assert path.read_bytes() == before and os.listdir(path.parent) == ["m.ourcc"]


def test_what_cannot_be_written_says_what_to_do(tmp_path, small):
    (tmp_path / "file").write_text("")
    for folder in ("missing", "file"):
        with pytest.raises(EngineError, match="cannot write engine") as error:
            write_engine(tmp_path / folder / "m.ourcc", small)
        assert error.value.hint == "nothing was changed; make the folder first, or name another"
    (tmp_path / "m.ourcc").mkdir()
    with pytest.raises(EngineError, match="Is a directory") as error:
        write_engine(tmp_path / "m.ourcc", small)
    assert error.value.hint == "nothing was changed; choose a folder in which you may write"


class Failing:
    """A system call whose nth use fails; a close that fails has closed all the same."""

    def __init__(self, real, nth, code, runs):
        self.real, self.nth, self.code, self.runs, self.count = real, nth, code, runs, 0

    def __call__(self, *arguments, **keywords):
        self.count += 1
        if self.count != self.nth:
            return self.real(*arguments, **keywords)
        if self.runs:
            self.real(*arguments)
        raise OSError(self.code, os.strerror(self.code))


CALLS = ("open", "write", "fsync", "close", "replace")


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_every_failing_system_call(path, small, monkeypatch, call, code):
    before = path.read_bytes()
    for nth in range(1, 60):
        failing = Failing(getattr(os, call), nth, code, call == "close")
        with monkeypatch.context() as patch:
            patch.setattr(replace_module.os, call, failing)
            try:
                write_engine(path, small)
                assert failing.count < nth, "a failing call was ignored"
                break
            except EngineError as error:
                assert os.strerror(code) in str(error)
        assert path.read_bytes() == before and os.listdir(path.parent) == ["m.ourcc"]
    else:
        pytest.fail("never got through")
    assert nth > 1


def test_short_writes_are_continued(path, small, monkeypatch):
    before = path.read_bytes()
    real = os.write
    monkeypatch.setattr(replace_module.os, "write", lambda handle, data: real(handle, data[:700]))
    write_engine(path, small)
    assert path.read_bytes() == before


def test_an_interrupt_leaves_nothing(path, small, monkeypatch):
    def interrupt(handle):
        raise KeyboardInterrupt

    monkeypatch.setattr(replace_module.os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_engine(path, small)
    assert os.listdir(path.parent) == ["m.ourcc"]


def test_places_that_cannot_be_written(tmp_path, small):
    with pytest.raises(EngineError, match=r"cannot write engine .*: No such file or directory"):
        write_engine(tmp_path / "gone" / "m.ourcc", small)
    (tmp_path / "folder").mkdir()
    with pytest.raises(EngineError, match="Is a directory"):
        write_engine(tmp_path / "folder", small)
    assert os.listdir(tmp_path) == ["folder"]


def test_names_that_may_not_be_members(tmp_path, small):
    for name in ("../evil.so", "a b", ".hidden", "x" * 300):
        parts = replace(small.parts["baseline"], files={name: b""})
        with pytest.raises(EngineError, match=r"engine member name .* is not allowed"):
            write_engine(tmp_path / "m", replace(small, parts={"baseline": parts}))
    double = replace(small.parts["baseline"], files={"a": b""})
    with pytest.raises(EngineError, match="is not allowed"):
        write_engine(tmp_path / "m", replace(small, parts={"cpu/../cpu": double}))


def test_files_over_four_gigabytes_have_wide_headers():
    members = [Member("a", 5 << 30, 1), Member("b", 3, 2)]
    placed = place(members)
    assert all(p.data % 4096 == 0 for p in placed) and placed[1].header == placed[0].end
    for p in placed:
        assert len(local_header(p)) == p.data - p.header
    tail = directory(placed, b"c")
    assert b"PK\x06\x06" in tail and struct.pack("<Q", placed[1].header) in tail and struct.pack("<Q", 5 << 30) in tail


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs sparse anonymous files")
def test_an_ordinary_reader_understands_wide_headers():
    members = [Member("a", 5 << 30, 1), Member("b", 3, zlib.crc32(b"abc"))]
    placed = place(members)
    handle = os.memfd_create("big")
    for p in placed:
        os.pwrite(handle, local_header(p), p.header)
    os.pwrite(handle, b"abc", placed[1].data)
    os.pwrite(handle, directory(placed, b""), placed[1].end)
    with os.fdopen(handle, "rb") as file, zipfile.ZipFile(file) as archive:
        assert archive.getinfo("a").file_size == 5 << 30 and archive.read("b") == b"abc"


# --- signatures -------------------------------------------------------------------------------------------------------


def test_signatures(tmp_path, small):
    ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
    ours, other = bytes(range(32)), bytes(range(1, 33))
    public, foreign = (ed25519.Ed25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw() for key in (ours, other))
    path = tmp_path / "m.ourcc"
    write_engine(path, small)
    with pytest.raises(EngineError, match="engine is not signed, expected a signature by a trusted key"):
        read_engine(path, Reading(trusted_keys=[public]))
    write_engine(path, small, signing_key=ours)
    assert read_engine(path, Reading(trusted_keys=[foreign, public])).graph == small.graph
    assert read_engine(path).graph == small.graph
    with pytest.raises(EngineError, match=f"engine is signed by {public.hex()}, which is not among the trusted keys"):
        read_engine(path, Reading(trusted_keys=[foreign]))
    with pytest.raises(EngineError, match="not among the trusted keys"):
        read_engine(path, Reading(trusted_keys=[]))
    with pytest.raises(UsageError, match="got one value for the trusted keys, expected a list"):
        read_engine(path, Reading(trusted_keys=public))
    with pytest.raises(UsageError, match="a trusted key of 3 bytes is not a public ed25519 key, expected 32 raw bytes"):
        read_engine(path, Reading(trusted_keys=[b"abc"]))
    data = bytearray(path.read_bytes())
    data[-1] = ord("0") if data[-1] != ord("0") else ord("1")
    path.write_bytes(data)
    with pytest.raises(EngineError, match="changed after it was signed: the signature does not fit"):
        read_engine(path, Reading(trusted_keys=[public]))
    # A signature moved to another engine does not fit it.
    write_engine(path, replace(small, graph="other"), signing_key=ours)
    moved = path.read_bytes()
    write_engine(path, small, signing_key=ours)
    good = path.read_bytes()
    path.write_bytes(good[:-128] + moved[-128:])
    with pytest.raises(EngineError, match="changed after it was signed: the signature does not fit"):
        read_engine(path, Reading(trusted_keys=[public]))
    with pytest.raises(UsageError, match="signing key has 3 bytes, expected 32"):
        write_engine(path, small, signing_key=b"abc")


def test_signing_without_the_package(path, small, monkeypatch):
    from ourcc.ir.errors import ToolchainError

    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)
    with pytest.raises(ToolchainError, match="signing needs the package cryptography"):
        write_engine(path, small, signing_key=bytes(32))


# --- weights ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def big(tmp_path, tiny):
    """An engine with 9 MB of weights in two members, one of them small; its times are old enough to be believed."""
    parts = tiny.parts["baseline"]
    contents = EngineContents.of({"cpu": parts}, {**tiny.weights, "spare": {"more": np.arange(9 << 17, dtype=np.int64)}})
    path = tmp_path / "big.ourcc"
    write_engine(path, contents)
    return age(path)


def age(path, seconds=10):
    """Move the time of the last change back; that of the change of its status only the kernel sets, so it is waited for."""
    then = time.time_ns() - seconds * 10**9
    os.utime(path, ns=(then, then))
    return path


@pytest.fixture
def settled(monkeypatch):
    """Files are old enough at once."""
    from ourcc.runtime import checked

    monkeypatch.setattr(checked, "SETTLED", 0)


@pytest.fixture
def hashed(monkeypatch):
    """The sizes of the weights that were hashed."""
    from ourcc.runtime import reader

    sizes = []
    real = reader.digest_file

    def spy(handle, first, size, *rest):
        sizes.append(size)
        return real(handle, first, size, *rest)

    monkeypatch.setattr(reader, "digest_file", spy)
    return sizes


def values_at(path):
    """Where the values of the big member begin."""
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo("weights/spare.safetensors")
        return info.header_offset + 4096 + 1000


def test_weights_are_hashed_once_a_file(big, tmp_path, settled, hashed):
    reading = Reading(checked=str(tmp_path / "checked"))
    for _ in range(3):
        assert read_engine(big, reading).weights["spare"]["more"].array()[7] == 7
    assert len([size for size in hashed if size > 1 << 20]) == 1
    (record,) = (tmp_path / "checked").iterdir()
    assert json.loads(record.read_bytes())["inode"] == big.stat().st_ino and record.stat().st_size < 400
    read_engine(big, replace(reading, verify=True))
    read_engine(big)
    assert len([size for size in hashed if size > 1 << 20]) == 3


@pytest.mark.parametrize("step", ["read_into", "digest_parts", "map_file", "digest_file"])
def test_a_file_that_is_cut_off_at_any_step_of_opening_it_is_an_error_of_ours(big, tmp_path, monkeypatch, step):
    from ourcc.runtime import reader

    real, whole, calls, cut = getattr(reader, step), big.read_bytes(), [], []

    def spy(*arguments, **more):
        calls.append(step)
        if cut == [len(calls)]:
            os.truncate(big, 0)
        return real(*arguments, **more)

    monkeypatch.setattr(reader, step, spy)
    read_engine(big)
    count, refused = len(calls), 0
    for number in range(1, count + 1):
        big.write_bytes(whole)
        calls.clear()
        cut[:] = [number]
        # What was read before needs the file no more; anything else than an engine or this error fails.
        try:
            read_engine(big)
        except EngineError:
            refused += 1
    assert refused > 0 and (step not in ("map_file", "digest_file") or refused == count)


def test_a_change_after_the_record_is_found(big, tmp_path, settled):
    reading = Reading(checked=str(tmp_path / "checked"))
    read_engine(big, reading)
    time.sleep(0.02)
    with open(big, "r+b") as file:
        file.seek(values_at(big))
        file.write(b"\xff")
    with pytest.raises(EngineError, match=r"weights/spare.safetensors does not match its digest"):
        read_engine(big, reading)


def test_a_file_that_was_just_written_gets_no_record(big, tmp_path):
    # Another change within the clock's step would leave its times as they are.
    read_engine(big, Reading(checked=str(tmp_path / "checked")))
    assert not (tmp_path / "checked").exists()


@pytest.mark.parametrize("spoil", ["flip", "cut", "others may write", "link", "folder"])
def test_a_record_that_is_damaged_or_of_others_is_not_believed(big, tmp_path, settled, hashed, spoil):
    reading = Reading(checked=str(tmp_path / "checked"))
    read_engine(big, reading)
    (record,) = (tmp_path / "checked").iterdir()
    data = record.read_bytes()
    if spoil == "flip":
        record.write_bytes(data.replace(b'"size":', b'"sise":'))
    elif spoil == "cut":
        record.write_bytes(data[:-1])
    elif spoil == "others may write":
        record.chmod(0o666)
    else:
        record.rename(tmp_path / "elsewhere")
        record.symlink_to(tmp_path / "elsewhere") if spoil == "link" else record.mkdir()
    read_engine(big, reading)
    assert len([size for size in hashed if size > 1 << 20]) == 2


def test_the_folder_of_records_stays_small(big, tmp_path, settled, monkeypatch):
    from ourcc.runtime import checked

    monkeypatch.setattr(checked, "MOST", 8)
    folder = tmp_path / "checked"
    for _ in range(20):
        copy = tmp_path / "copy"
        copy.write_bytes(big.read_bytes())
        read_engine(copy, Reading(checked=str(folder)))
        copy.rename(tmp_path / f"kept-{os.urandom(4).hex()}")
    assert 0 < len(list(folder.iterdir())) <= 8


def test_a_folder_that_cannot_be_written_costs_time_alone(big, tmp_path, settled):
    (tmp_path / "file").write_text("")
    assert read_engine(big, Reading(checked=str(tmp_path / "file" / "checked"))).parts


def test_progress_is_told(big):
    told = []
    read_engine(big, Reading(watch=lambda done, total: told.append((done, total))))
    assert told[-1][0] == told[-1][1] > 9 << 20 and [done for done, _ in told] == sorted(done for done, _ in told)


def test_small_weights_are_copied_and_others_on_request(big, path):
    def is_mapped(reading, member, name):
        array = read_engine(big, reading).weights[member][name].data
        while isinstance(array.base, np.ndarray):
            array = array.base
        return array.base is not None

    assert not is_mapped(Reading(), "shared", "other")
    assert is_mapped(Reading(), "spare", "more")
    assert not is_mapped(Reading(copy_weights=True), "spare", "more")


def test_copied_weights_survive_a_file_that_is_cut_off(big):
    contents = read_engine(big, Reading(copy_weights=True))
    os.truncate(big, 0)
    assert contents.weights["spare"]["more"].array()[-1] == (9 << 17) - 1
    assert contents.weights["shared"]["other"].array().tolist() == list(range(7))


def test_a_file_that_is_cut_off_while_it_is_hashed_is_an_error(big, monkeypatch):
    from ourcc.runtime import digests

    real = digests.read_into

    def cut(handle, first, target):
        os.truncate(big, 8192)
        real(handle, first, target)

    monkeypatch.setattr(digests, "read_into", cut)
    with pytest.raises(EngineError, match="engine ends early"):
        read_engine(big)


def test_mapped_weights_are_not_copied(tmp_path, tiny, settled):
    weights = {"shared": {**tiny.weights["shared"], **{f"w{n}": np.zeros((15, 100, 1000), np.float32) for n in range(15)}}}
    path = tmp_path / "big.ourcc"
    write_engine(path, EngineContents.of(tiny.parts, weights))
    assert path.stat().st_size > 90_000_000
    # Memory of its own, not the peak: a child inherits its parent's peak, which would hide what is added to it.
    code = """
import re, sys
import numpy as np
from ourcc.runtime import Engine
def own():
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1])
before = own()
engine = Engine.load(sys.argv[1], copy_weights=sys.argv[2] == "copied")
engine(np.zeros((2, 2), np.float32))
print(own() - before)
"""
    taken = {}
    for how in ("mapped", "copied"):
        done = subprocess.run([sys.executable, "-c", code, str(path), how], capture_output=True, text=True, check=True)
        taken[how] = int(done.stdout)
    assert taken["mapped"] < 20_000 < 85_000 < taken["copied"], "kilobytes"


def test_a_signature_is_lost_to_nothing_unsigned(tmp_path, tiny):
    pytest.importorskip("cryptography")
    path, elsewhere, key = tmp_path / "m.ourcc", tmp_path / "n.ourcc", bytes(range(32))
    write_engine(path, tiny, signing_key=key)
    signed = path.read_bytes()
    Engine.load(path).save(path)
    assert path.read_bytes() == signed, "the same engine keeps its signature"
    Engine.load(path).save(elsewhere)
    assert read_signature(elsewhere) is None
    with pytest.raises(EngineError, match=r"is signed by [0-9a-f]{64}, and what would take its place is not") as refused:
        write_engine(path, replace(tiny, graph="other"))
    assert refused.value.hint == "give a signing_key, or another path" and path.read_bytes() == signed
    broken = signed[:-1] + (b"1" if signed.endswith(b"0") else b"0")
    path.write_bytes(broken)
    with pytest.raises(EngineError, match="what would take its place is not"):
        write_engine(path, tiny)
    assert path.read_bytes() == broken
    write_engine(path, replace(tiny, graph="other"), signing_key=bytes(range(1, 33)))
    assert read_engine(path).graph == "other"
