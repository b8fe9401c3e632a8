"""Damaged and hostile engine files in C: each ends in one error, and in no signal, with the verdict that Python's reader gives."""

from __future__ import annotations

import json
import random
import resource
import subprocess
import zlib
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from library import CError, Library, compile_c

from ourcc.compiler.options import build_options
from ourcc.compiler.pipeline import compile_module
from ourcc.ir.errors import CompilerError, EngineError
from ourcc.ir.graph import Builder, Graph, Module
from ourcc.ir.types import TensorType, f32, i64
from ourcc.runtime import Engine, EngineContents, archive, read_engine, write_engine
from ourcc.runtime.archive import Member
from ourcc.runtime.digests import digest_parts

DAMAGES = 400
EDITS = 500
OPENED = "OURCC_OK"
REFUSED = {"OURCC_DAMAGED", "OURCC_UNSUPPORTED", "OURCC_MEMORY", "OURCC_INPUT"}


def verdicts(program: Path, paths: list[Path]) -> list[tuple[str, str]]:
    """What the C runtime says of files, each status with its message; a signal or a fault of memory fails."""
    given = "".join(f"{path}\n" for path in paths)
    # The sanitizers also look for memory that was never given back.
    done = subprocess.run([str(program)], input=given, capture_output=True, text=True, check=False, errors="replace")
    assert done.returncode == 0, f"after {len(done.stdout.splitlines())} of {len(paths)} files: {done.stderr[-4000:]}"
    pairs = [line.partition("\t")[::2] for line in done.stdout.splitlines()]
    assert len(pairs) == len(paths)
    return pairs


def module() -> Module:
    """A product with 1.2 MB of weights, a state, two functions, a check of indices."""
    made = Module("whole")
    state = made.add_state("kept", TensorType(f32, (4, 8)), made.add_constant("begin", np.ones((4, 8), np.float32)))
    main = made.functions["main"] = Graph("main")
    x = main.add_input("x", TensorType(f32, (made.declare("B", 1, 9), 600)))
    b = Builder(made, main)
    weights = np.random.default_rng(0).standard_normal((600, 512)).astype(np.float32)
    main.set_outputs([b.tanh(b.matmul(x, made.add_constant("w", weights))), b.mul(x, 2.0)], ["y", "z"])
    put = made.functions["put"] = Graph("put")
    places = put.add_input("places", TensorType(i64, (2,)))
    held, b = put.add_state(state), Builder(made, put)
    rows = b.take(held, b.check_index(places, size=4, negative=True), axis=0)
    put.set_outputs([rows], ["rows"], {"kept": b.put_slice(held, b.add(rows, 1.0), starts=(0, 0), steps=(1, 1))})
    return made


@pytest.fixture(scope="module")
def contents() -> EngineContents:
    return compile_module(module(), build_options({"targets": ["native"], "tune": "off"}))


@pytest.fixture(scope="module")
def whole(contents: EngineContents, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "engine"
    write_engine(path, contents)
    return path


# --- damage -----------------------------------------------------------------------------------------------------------


def flip(data: bytearray, draw: random.Random) -> bytearray:
    """Bits of any place, and as often of the small parts around the members."""
    for _ in range(draw.randint(1, 3)):
        size = len(data)
        place = draw.choice((draw.randrange(size), draw.randrange(min(size, 12_000)), size - 1 - draw.randrange(2000)))
        data[place] ^= 1 << draw.randrange(8)
    return data


def cut(data: bytearray, draw: random.Random) -> bytearray:
    return data[: draw.choice((draw.randrange(len(data)), draw.randrange(5000), len(data) - draw.randrange(1, 300)))]


def append(data: bytearray, draw: random.Random) -> bytearray:
    return data + draw.randbytes(draw.randint(1, 5000))


def clear(data: bytearray, draw: random.Random) -> bytearray:
    first, size = draw.randrange(len(data)), draw.randint(1, 8192)
    data[first : first + size] = bytes(len(data[first : first + size]))
    return data


def drop(data: bytearray, draw: random.Random) -> bytearray:
    first = draw.randrange(len(data))
    del data[first : first + draw.randint(1, 5000)]
    return data


def repeat_tail(data: bytearray, draw: random.Random) -> bytearray:
    return data + data[-draw.randint(1, len(data)) :]


DAMAGE: tuple[Callable[[bytearray, random.Random], bytearray], ...] = (flip, flip, flip, cut, append, clear, drop, repeat_tail)


def test_damage_is_refused_as_in_python(sanitized: Path, whole: Path, tmp_path: Path) -> None:
    data, paths, expected = whole.read_bytes(), [], []
    for number in range(DAMAGES):
        draw = random.Random(number)
        changed = bytes(draw.choice(DAMAGE)(bytearray(data), draw))
        path = tmp_path / f"{number}"
        path.write_bytes(changed)
        paths.append(path)
        try:
            read_engine(path)
            expected.append(True)
        except CompilerError:
            expected.append(False)
    found = verdicts(sanitized, [whole, *paths])
    assert found[0] == (OPENED, "")
    wrong = [(n, *pair) for n, (pair, whole) in enumerate(zip(found[1:], expected, strict=True)) if (pair[0] == OPENED) != whole]
    assert not wrong
    assert {status for status, _ in found[1:]} <= REFUSED | {OPENED}
    assert all(message for status, message in found[1:] if status != OPENED)
    assert expected.count(False) > 0.95 * DAMAGES


def test_what_is_no_engine_is_refused(sanitized: Path, tmp_path: Path) -> None:
    texts = [b"", b"PK\3\4", b"PK\3\4" + bytes(9000), b"\x7fELF" + bytes(9000), b"sha256:" + b"0" * 64, bytes(100_000)]
    for number, data in enumerate(texts):
        (tmp_path / f"{number}").write_bytes(data)
    paths = [tmp_path / f"{number}" for number in range(len(texts))]
    found = verdicts(sanitized, [*paths, tmp_path / "absent", tmp_path])
    assert [status for status, _ in found] == ["OURCC_DAMAGED"] * len(texts) + ["OURCC_SYSTEM", "OURCC_DAMAGED"]


# --- edits whose digests are right ------------------------------------------------------------------------------------


def members_of(path: Path) -> dict[str, bytes]:
    """The members of an engine in order, the manifest first."""
    import zipfile

    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def written(members: dict[str, bytes], manifest: Any) -> bytes:
    """An engine file of these members whose digests all fit, whatever the manifest says besides."""
    if isinstance(manifest, dict) and isinstance(manifest.get("members"), list):
        for entry in manifest["members"]:
            if isinstance(entry, list) and len(entry) == 5 and isinstance(entry[0], str) and entry[0] in members:
                data = members[entry[0]]
                entry[1:4] = [len(data), zlib.crc32(data), digest_parts([data])]
                if isinstance(entry[4], list) and len(entry[4]) == 2:
                    head = data[: 8 + int.from_bytes(data[:8], "little")]
                    entry[4] = [len(head), sha256(head).hexdigest()]
    text = json.dumps(manifest).encode()
    names = {"manifest.json": text, **{name: data for name, data in members.items() if name != "manifest.json"}}
    placed = archive.place([Member(name, len(data), zlib.crc32(data)) for name, data in names.items()])
    pieces = [piece for place in placed for piece in (archive.local_header(place), names[place.member.name])]
    return b"".join([*pieces, archive.directory(placed, b"sha256:" + sha256(text).hexdigest().encode())])


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The parts of a JSON value, those twelve deep at most."""
    if path:
        yield path
    if len(path) == 12:
        return
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*path, key))


DEEP: Any = []
for _ in range(300):
    DEEP = [DEEP]
STRANGE = (
    *(None, True, False, 0, 1, -1, 2**31, 2**48, 2**62, 2**63 - 1, 2**63, -(2**63), 10**30, 1.5, -0.0, 1e300),
    *(
        "",
        "x",
        "B",
        "B // 0",
        "B * B * B * B * B * B * 1000000000",
        "(" * 200,
        "max(B, )",
        "B % (B - B)",
        "9" * 30,
        "é\U0001f600",
        "../../etc",
    ),
    *(
        [],
        {},
        [[]],
        [1, 2],
        ["B"],
        {"kind": "alias"},
        {"dtype": "f32", "shape": ["B"]},
        DEEP,
        "f32",
        "string",
        "constant",
        "host",
        "call",
        "0" * 64,
    ),
)


def edit(value: Any, draw: random.Random) -> Any:
    """One part taken away, put twice, exchanged for another one or for something strange."""
    value = json.loads(json.dumps(value))
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        found = list(places(value))
        if not found:
            return draw.choice(STRANGE)
        *path, key = draw.choice(found)
        inside = value
        for step in path:
            inside = inside[step]
        kind = draw.choice(("strange", "strange", "strange", "drop", "twice", "other"))
        if kind == "drop":
            del inside[key]
        elif kind == "twice" and isinstance(inside, list):
            inside.insert(key, inside[key])
        elif kind == "other":
            other: Any = value
            for step in draw.choice(found):
                if not isinstance(other, (dict, list)) or (isinstance(other, list) and not step < len(other)):
                    break
                other = other[step] if not isinstance(other, dict) or step in other else other
            inside[key] = json.loads(json.dumps(other))
        else:
            inside[key] = json.loads(json.dumps(draw.choice(STRANGE)))
    return value


def edited(members: dict[str, bytes], draw: random.Random) -> bytes:
    manifest = json.loads(members["manifest.json"])
    name = draw.choice(["manifest.json", *(name for name in members if name.startswith(("plan/", "weights/")))])
    changed = dict(members)
    if name == "manifest.json":
        manifest = edit(manifest, draw)
    elif name.startswith("plan/"):
        changed[name] = json.dumps(edit(json.loads(members[name]), draw)).encode()
    else:
        size = int.from_bytes(members[name][:8], "little")
        text = json.dumps(edit(json.loads(members[name][8 : 8 + size]), draw)).encode()
        text += b" " * (-(len(text) + 8) % 64)
        changed[name] = len(text).to_bytes(8, "little") + text + members[name][8 + size :]
    return written(changed, manifest)


def test_edits_with_right_digests_are_refused_or_run(sanitized: Path, whole: Path, tmp_path: Path) -> None:
    members = members_of(whole)
    same = tmp_path / "same"
    same.write_bytes(written(members, json.loads(members["manifest.json"])))
    paths = [same]
    for number in range(EDITS):
        path = tmp_path / f"{number}"
        path.write_bytes(edited(members, random.Random(number)))
        paths.append(path)
    found = verdicts(sanitized, paths)
    assert found[0] == (OPENED, "")
    assert {status for status, _ in found} <= REFUSED | {OPENED}, {status for status, _ in found}
    taken = [path for path, (status, _) in zip(paths, found, strict=True) if status == OPENED]
    refused = {path: why for path in taken if (why := refusal_in_python(path)) is not None}
    assert not refused
    strict = {path: pair for path, pair in zip(paths, found, strict=True) if path not in taken and refusal_in_python(path) is None}
    # C reads lists 200 deep, Python as deep as its stack goes: the one thing in which C may be stricter.
    assert not {path: pair for path, pair in strict.items() if "more than 200 lists" not in pair[1]}
    assert len(taken) < 0.5 * EDITS


@pytest.mark.parametrize("field", ["place", "size", "negative", "subject"])
def test_a_check_of_a_place_without_a_field_is_refused_by_both(sanitized: Path, tmp_path: Path, field: str) -> None:
    module = Module("places")
    graph = module.functions["main"] = Graph("main")
    x = graph.add_input("x", TensorType(f32, (module.declare("V", 1, 99), 3)))
    given, n, b = graph.add_input("given", TensorType(i64, ())), module.declare("n", None, None), Builder(module, graph)
    b.item(given, symbol=n)
    graph.set_outputs([b.exp(b.check_place(x, axis=0, place=n))], ["y"])
    path = tmp_path / "engine"
    write_engine(path, compile_module(module, build_options({"targets": ["native"], "tune": "off"})))
    members = members_of(path)
    name = next(name for name in members if name.startswith("plan/"))
    plan = json.loads(members[name])
    (step,) = (step for step in plan["steps"] if step["kind"] == "check_place")
    del step[field]
    path.write_bytes(written({**members, name: json.dumps(plan).encode()}, json.loads(members["manifest.json"])))
    assert verdicts(sanitized, [path])[0][0] in REFUSED and refusal_in_python(path) is not None


@pytest.mark.parametrize("head", ["", [], "x", [0], {}])
def test_a_damaged_record_of_a_member_is_told_by_both(library: Library, whole: Path, tmp_path: Path, head: object) -> None:
    members = members_of(whole)
    manifest = json.loads(members["manifest.json"])
    manifest["members"][0][4] = head
    path = tmp_path / "engine"
    path.write_bytes(written(members, manifest))
    with pytest.raises(EngineError, match=r"list of members is damaged"):
        read_engine(path)
    with pytest.raises(CError, match=r"^DAMAGED: .*list of members is damaged"):
        library.open(path)


def refusal_in_python(path: Path) -> str | None:
    """Why Python does not open a file; None if it does."""
    try:
        Engine.load(path, threads=1)
    except CompilerError as error:
        return str(error)
    return None


def test_memory_that_is_refused_is_an_error(runtime_files: list[str], whole: Path, tmp_path: Path) -> None:
    """Whatever allocation fails, the status says so; with a little more memory the engine runs."""
    program = compile_c(
        tmp_path / "program", [*runtime_files, str(Path(__file__).with_name("program.c"))], f"-I{Path(runtime_files[0]).parent}"
    )
    seen = []
    for kilobytes in (*range(3_000, 12_000, 250), *range(12_000, 60_000, 4_000), 2_000_000):

        def limit(size: int = kilobytes * 1024) -> None:
            resource.setrlimit(resource.RLIMIT_AS, (size, size))

        done = subprocess.run([str(program)], input=f"{whole}\n", capture_output=True, text=True, check=False, preexec_fn=limit)
        if done.returncode == 127 and "error while loading shared libraries" in done.stderr:
            continue  # there is not even room for libc
        assert done.returncode == 0 and done.stdout.count("\n") == 1, (kilobytes, done)
        seen.append(done.stdout.partition("\t")[0])
    assert set(seen) <= {OPENED, "OURCC_MEMORY", "OURCC_SYSTEM"} and seen[-1] == OPENED
    assert "OURCC_MEMORY" in seen


def test_loading_and_closing_leaves_no_memory(library: Library, contents: EngineContents, tmp_path: Path) -> None:
    """Files, mappings and descriptors are given back, however often an engine comes and goes."""
    path = tmp_path / "engine"
    write_engine(path, contents)

    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    def mappings() -> int:
        return Path("/proc/self/maps").read_text().count("\n")

    def once() -> None:
        engine = library.open(path)
        engine.session()(np.ones((2, 600), np.float32))
        engine.close()

    for _ in range(3):
        once()
    before = descriptors(), mappings()
    for _ in range(20):
        once()
    assert descriptors() == before[0] and mappings() <= before[1] + 4
