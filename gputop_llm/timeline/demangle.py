"""C++ names of kernels as they are written in source."""

from __future__ import annotations


def demangled(name: str) -> str:
    """The name as it is: `kernel_names` finds the identifiers in a mangled one."""
    return name
