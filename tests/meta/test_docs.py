"""The documentation: generated pages are current, links lead somewhere, the layout page names every folder."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = (ROOT / "docs", ROOT / "benchmarks", ROOT / "examples")
PAGES = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in folder.rglob("*.md"))])


def generated() -> dict[str, str]:
    specification = importlib.util.spec_from_file_location("generate_docs", ROOT / "docs" / "generate.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    pages: dict[str, str] = module.pages()
    return pages


def test_generated_pages_are_current() -> None:
    stale = [
        name for name, text in generated().items() if not (ROOT / "docs" / name).exists() or (ROOT / "docs" / name).read_text() != text
    ]
    assert stale == [], "run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


def test_the_layout_names_every_folder() -> None:
    text = (ROOT / "docs" / "layout.md").read_text(encoding="utf-8")
    rooms = ("ir", "runtime", "passes", "codegen", "autotune", "compiler")
    assert [room for room in rooms if f"{room}/" not in text] == []
    named = re.findall(r"`((?:ir|compiler|passes|codegen|runtime|autotune)/[\w/]*(?:\.py)?)`", text)
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_readme_opens_with_the_two_commands() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert [line.split("#")[0].strip() for line in lines[3:5]] == ["make demo", "make test"]


def test_the_makefile_explains_every_target() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)[0].split())
    explained = set(re.findall(r"^([a-z-]+):.*## ", text, re.MULTILINE))
    assert targets == explained
    assert {"demo", "test", "check", "bench", "models", "gpu", "help", "onnx-suite", "opinfo"} <= targets


def test_decisions_are_numbered_in_order() -> None:
    names = sorted(path.name for path in (ROOT / "docs" / "adr").glob("*.md"))
    assert [int(name[:4]) for name in names] == list(range(1, len(names) + 1))
