"""The package: its list against the tree, its pins against its ranges, and a wheel that installs and imports whole."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import ourcc
from ourcc.compiler.targets import machine
from ourcc.ir.extras import EXTRAS

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
ROOMS = ("ir", "runtime", "passes", "codegen", "autotune", "compiler")
# An extra that no development machine needs: another C compiler.
NOT_PINNED = {"ziglang"}
# Modules whose distribution has another name; protobuf comes with onnx.
IMPORTED_AS = {"google": "onnx"}
# Extras that are called, not imported.
DEVELOPMENT = {
    canonicalize_name(Requirement(text).name) for extra in ("demo", "dev") for text in PROJECT["project"]["optional-dependencies"][extra]
}
# What `bench` compares with where it is installed.
PEERS = {"openvino"}


def modules() -> list[str]:
    paths = [path.relative_to(ROOT) for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    names = [".".join(("ourcc", *path.with_suffix("").parts)) for path in paths]
    return sorted(["ourcc", *(name.removesuffix(".__init__") for name in names)])


def pins() -> dict[str, str]:
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    return {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines if not line.startswith("#"))}


def test_every_package_is_listed() -> None:
    folders = {path.parent.relative_to(ROOT) for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    expected = sorted(["ourcc", *(".".join(("ourcc", *folder.parts)) for folder in folders)])
    assert PROJECT["tool"]["setuptools"]["packages"] == expected


def test_every_package_has_its_opening_file() -> None:
    folders = {path.parent for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    assert [str(folder.relative_to(ROOT)) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_the_version_is_stated_once_in_two_places() -> None:
    assert PROJECT["project"]["version"] == ourcc.__version__


def test_the_lock_pins_exact_public_versions() -> None:
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    wrong = [line for line in lines if not line.startswith("#") and not re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][0-9a-z.]*", line)]
    assert wrong == []
    assert pins()["torch"] == "2.13.0"


def test_the_lock_lies_in_the_ranges() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = [Requirement(text) for texts in (PROJECT["project"]["dependencies"], *extras.values()) for text in texts]
    found, wrong = pins(), []
    for requirement in wanted:
        version = found.get(canonicalize_name(requirement.name))
        if version is None and requirement.name not in NOT_PINNED:
            wrong.append(f"{requirement.name} is not pinned")
        if version is not None and not requirement.specifier.contains(version):
            wrong.append(f"{requirement} does not hold for the pinned {version}")
    assert wrong == []


def test_dependencies_are_what_is_imported() -> None:
    """Nothing is asked for that no module imports, and nothing is imported that nobody asks for."""
    found: set[str] = set()
    for path in (path for room in ROOMS for path in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                found.add(node.module.split(".")[0])
    imported = {canonicalize_name(IMPORTED_AS.get(name, name)) for name in found - sys.stdlib_module_names}
    extras = {canonicalize_name(Requirement(text).name) for texts in PROJECT["project"]["optional-dependencies"].values() for text in texts}
    required = {canonicalize_name(Requirement(text).name) for text in PROJECT["project"]["dependencies"]}
    assert required - imported == set()
    assert imported - required - extras - PEERS == set()
    assert extras - imported - DEVELOPMENT == NOT_PINNED


def test_doctor_shows_what_is_required_and_what_is_extra() -> None:
    required = {canonicalize_name(Requirement(text).name) for text in PROJECT["project"]["dependencies"]}
    assert {canonicalize_name(name) for name in machine.LIBRARIES} == required
    assert required & {canonicalize_name(name) for name in machine.EXTRAS} == set()


def test_the_link_for_type_checkers_leads_to_the_root() -> None:
    link = ROOT / ".typing" / "ourcc"
    assert link.is_symlink()
    assert os.readlink(link) == ".."


def copy_of_the_tree(source: Path) -> Path:
    source.mkdir()
    for name in (*ROOMS, "tests", ".build_backend"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("__init__.py", "py.typed", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    return source


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = copy_of_the_tree(folder / "source")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(folder), "."]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_every_module_and_nothing_else(wheel: Path) -> None:
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    held = sorted(name.removesuffix(".py").replace("/", ".").removesuffix(".__init__") for name in names if name.endswith(".py"))
    assert held == modules()
    sources = [f"ourcc/runtime/c/{path.name}" for path in (ROOT / "runtime" / "c").iterdir()]
    routines = [f"ourcc/codegen/host/{path.name}" for path in (ROOT / "codegen" / "host").glob("*.[ch]")]
    assert sorted(name for name in names if not name.endswith(".py")) == sorted(["ourcc/py.typed", *sources, *routines])


def test_a_module_that_was_deleted_is_not_installed_again(tmp_path: Path) -> None:
    source = copy_of_the_tree(tmp_path / "source")
    # What an older setuptools left behind, and a module that is there for the first install only.
    left = source / "build" / "lib" / "ourcc" / "ir" / "left_behind.py"
    left.parent.mkdir(parents=True)
    left.write_text("")
    (source / "ir" / "short_lived.py").write_text("")
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--no-compile", "--disable-pip-version-check")

    def install(name: str) -> set[str]:
        command = [sys.executable, "-m", "pip", "install", *options, "--target", str(tmp_path / name), "."]
        done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr
        return {path.name for path in (tmp_path / name / "ourcc" / "ir").iterdir()}

    first = install("first")
    assert "short_lived.py" in first and "left_behind.py" not in first
    (source / "ir" / "short_lived.py").unlink()
    assert install("second") == first - {"short_lived.py"}


def test_an_editable_install_leads_to_the_tree(tmp_path: Path) -> None:
    source = copy_of_the_tree(tmp_path / "source")
    code = f"import sys; sys.path.insert(0, '.build_backend'); import fresh; print(fresh.build_editable({str(tmp_path)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    names = zipfile.ZipFile(tmp_path / done.stdout.splitlines()[-1]).namelist()
    assert any(name.endswith((".pth", "finder.py")) for name in names) and "ourcc/ir/errors.py" not in names


def test_extras_name_what_they_install() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    for library, extra in EXTRAS.items():
        assert library in {canonicalize_name(Requirement(text).name) for text in extras[extra]}
    named = {canonicalize_name(Requirement(text).name) for name in extras if name not in ("dev", "demo") for text in extras[name]}
    assert named == set(EXTRAS)


def test_the_wheel_installs_into_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def call(*command: str | Path) -> str:
        done = subprocess.run([*map(str, command)], cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    call(sys.executable, "-m", "venv", "--without-pip", tmp_path / "env")
    python = tmp_path / "env" / "bin" / "python"
    call(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    # What it depends on comes from here; a .pth file found through this one is not read, so an editable install is not seen.
    (packages,) = (tmp_path / "env").glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    imports = "; ".join(f"import {name}" for name in modules())
    assert call(python, "-c", f"{imports}; print(ourcc.__file__)").strip() == str(packages / "ourcc" / "__init__.py")
    assert call(tmp_path / "env" / "bin" / "ourcc", "--version").strip() == f"ourcc, version {ourcc.__version__}"
    code = (
        "from importlib.metadata import entry_points; print([e.value for e in entry_points(group='torch_dynamo_backends', name='ourcc')])"
    )
    assert "ourcc.compiler.torch.backend:ourcc" in call(python, "-c", code)
