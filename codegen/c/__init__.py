"""The C code generator: tile programs to C, and C to shared objects."""

from .compile import SharedObject, compile_shared
from .printer import Kernel, SourceFile, grid_points, print_launch
from .toolchain import Compiler, find_compiler

__all__ = ["Compiler", "Kernel", "SharedObject", "SourceFile", "compile_shared", "find_compiler", "grid_points", "print_launch"]
