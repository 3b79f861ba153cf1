"""Kernels that torch.compile wrote: found by name in its cache, and called as their own wrapper calls them.

A wrapper is a Python file with the kernels' source and one `NAME.run(…)` for each. Of what it passes only whole numbers
are worked out, from the wrapper's own text and never by running it; it is the script that loads it. Only files of this
user or root are taken.
"""

from __future__ import annotations

import ast
import operator
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from gputop_llm.rerun.case import Case

ORIGIN = "kernels in the cache of torch.compile"
_MOST_FILES, _MOST_BYTES = 20_000, 4 << 20
#: Each compiles all that its wrapper has, which takes seconds.
MOST = 32
_SIGNATURE = re.compile(r"'signature': (\{[^{}]*\})")
_ASSIGNED = re.compile(r"^ +(\w+) = ([\w +*/()%,-]+)$", re.MULTILINE)
_SYMBOL = re.compile(r"[su]\d+")
#: As the script's `inductor` makes them, at 4 bytes an element.
_BUFFER_ELEMENTS, _TIMES = 1 << 24, 8
_OPERATORS: Mapping[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def folders(variables: Mapping[str, str] = os.environ) -> tuple[Path, ...]:
    """Where torch and vLLM keep what was compiled, by the variables that they look at."""
    home = variables.get("HOME", "/root")
    user = variables.get("USER") or variables.get("LOGNAME") or "root"
    vllm = variables.get("VLLM_CACHE_ROOT") or f"{variables.get('XDG_CACHE_HOME') or f'{home}/.cache'}/vllm"
    torch = variables.get("TORCHINDUCTOR_CACHE_DIR") or f"{variables.get('TMPDIR') or '/tmp'}/torchinductor_{user}"
    return Path(torch), Path(vllm) / "torch_compile_cache"


def cases(names: Sequence[str], tokens: Sequence[int], places: Sequence[Path]) -> tuple[Case, ...]:
    """Calls of these kernels with each batch size, from the wrappers that have them, the newest first."""
    wanted = {name for name in names if re.fullmatch(r"triton_\w{1,300}", name)}
    found: dict[str, Case] = {}
    if not wanted:
        return ()
    for path, text in _wrappers(places):
        if len(found) >= MOST:
            break
        for name in sorted(wanted):
            if f"{name} = async_compile.triton(" not in text:
                continue
            for size in tokens:
                sizes = sizes_of(text, name, size)
                if sizes is not None:
                    case = _case(path, name, size, sizes)
                    found.setdefault(case.call, case)
    # One name may stand in several wrappers.
    labels: dict[str, int] = {}
    numbered = []
    for case in list(found.values())[:MOST]:
        labels[case.label] = labels.get(case.label, 0) + 1
        again = labels[case.label]
        label = case.label if again == 1 else f"{case.label}, wrapper {again}"
        numbered.append(Case(label, case.call, case.needs, case.bytes, case.origin))
    return tuple(numbered)


def sizes_of(text: str, name: str, tokens: int) -> dict[str, int] | None:
    """The whole numbers that a wrapper passes to a kernel, by the names of its signature; None if they can't be told.

    Args:
        text: the wrapper.
        tokens: what its one free size stands for.
    """
    source = text.partition(f"{name} = async_compile.triton(")[2].partition("''', device_str")[0]
    call = re.search(rf"^\s+{name}\.run\((.*), stream=", text, re.MULTILINE)
    signature = _SIGNATURE.search(source)
    if call is None or signature is None:
        return None
    try:
        kinds = ast.literal_eval(signature[1])
        passed = ast.parse(f"f({call[1]})", mode="eval").body
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    arguments = [argument for argument, kind in kinds.items() if kind != "constexpr"]
    if not isinstance(passed, ast.Call) or len(passed.args) != len(arguments):
        return None
    assigned = dict(_ASSIGNED.findall(text))
    free: set[str] = set()
    sizes: dict[str, int] = {}
    for argument, value in zip(arguments, passed.args, strict=True):
        if str(kinds[argument]).startswith("*"):
            continue
        number = _number(value, assigned, tokens, free)
        if number is None:
            return None
        sizes[argument] = number
    # With more than one free size, which of them is the batch is not known.
    return sizes if len(free) <= 1 and any(key.endswith("numel") for key in sizes) else None


def _number(node: ast.AST, assigned: Mapping[str, str], tokens: int, free: set[str], depth: int = 0) -> int | None:
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if isinstance(node, ast.Name) and depth < 8:
        meant = assigned.get(node.id, "")
        if _SYMBOL.fullmatch(node.id) and (not meant or re.fullmatch(r"arg\w+", meant)):
            free.add(node.id)
            return tokens
        try:
            return _number(ast.parse(meant, mode="eval").body, assigned, tokens, free, depth + 1)
        except (SyntaxError, ValueError):
            return None
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = (_number(side, assigned, tokens, free, depth) for side in (node.left, node.right))
        if left is None or right is None or (not right and isinstance(node.op, (ast.FloorDiv, ast.Mod))):
            return None
        return _OPERATORS[type(node.op)](left, right)
    return None


def _case(path: Path, name: str, tokens: int, sizes: Mapping[str, int]) -> Case:
    elements = 1
    for key, size in sizes.items():
        elements *= size if key.endswith("numel") else 1
    return Case(
        f"{name}, {tokens} tokens",
        f'inductor({str(path)!r}, "{name}", {dict(sizes)!r})',
        ("inductor",),
        8 * 4 * max(_TIMES * elements, _BUFFER_ELEMENTS),
        ORIGIN,
    )


def _wrappers(places: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    paths = (Path(folder) / file for place in places for folder, _, files in os.walk(place) for file in files)
    sources = islice((path for path in paths if path.suffix == ".py"), _MOST_FILES)
    for path in sorted(sources, key=_written, reverse=True):
        text = _text(path)
        if text is not None and "async_compile.wait(" in text:
            yield path, text


def _written(path: Path) -> int:
    try:
        return path.lstat().st_mtime_ns
    except OSError:
        return 0


def _text(path: Path) -> str | None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(handle, "rb") as file:
        about = os.fstat(handle)
        if about.st_uid not in (0, os.geteuid()) or about.st_size > _MOST_BYTES:
            return None
        return file.read(_MOST_BYTES).decode("utf-8", "replace")
