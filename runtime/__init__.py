"""How an engine runs: file format, loader, and an executor per target."""

from .contents import Contract, ContractRow, EngineContents, Library, Port, TargetContents
from .engine import Engine
from .file import write_engine
from .reader import Reading, read_engine
from .weights import Constant

__all__ = [
    "Constant",
    "Contract",
    "ContractRow",
    "Engine",
    "EngineContents",
    "Library",
    "Port",
    "Reading",
    "TargetContents",
    "read_engine",
    "write_engine",
]
