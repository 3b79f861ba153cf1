"""Loads modules that would load OpenSSL only because it is there: 5 MB, and 6 ms of a start."""

from __future__ import annotations

import importlib
import sys


def load(*modules: str) -> None:
    """Loads modules that work where Python has no OpenSSL, as if it had none; who does speak TLS loads it later."""
    if "ssl" in sys.modules:
        return
    sys.modules["ssl"] = None  # type: ignore[assignment]  # says that there is none
    try:
        for module in modules:
            importlib.import_module(module)
    finally:
        del sys.modules["ssl"]
