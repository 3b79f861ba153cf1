"""What the package may load, spawn and decide. The layers themselves stand in pyproject.toml (import-linter)."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "gputop_llm"
MODULES = sorted(PACKAGE.rglob("*.py"))

#: Each costs 10 to 500 ms or several MB when it is loaded.
HEAVY = {"textual", "rich", "torch", "nvtx", "numpy", "prometheus_client", "urllib3", "psutil", "pynvml"}

MAY_EXIT = {"commands/nsys_shim.py", "cli.py", "tui/app.py", "tui/terminal_app.py", "__main__.py"}
MAY_SPAWN = {
    "commands/run.py",
    "commands/run_nsys.py",
    "commands/nsys_shim.py",
    "capture/process.py",
    "demo/simulator.py",
    "lab/ranks.py",
    "ncu/child.py",
    "notify/command.py",
    "sources/engine_log_journal.py",
    "timeline/nsys_export.py",
}
SPAWNERS = re.compile(
    r"subprocess|multiprocessing|pty|concurrent\.futures\.process"
    r"|os\.(fork|forkpty|system|popen|startfile|posix_spawnp?|(exec|spawn)[lv]p?e?)"
    r"|asyncio\.create_subprocess_(exec|shell)"
)
EXITS = re.compile(r"sys\.exit|os\._exit|os\.abort|exit|quit|SystemExit")


def relative(path):
    return path.relative_to(PACKAGE).as_posix()


def used_names(path):
    """Dotted names that a module uses or imports, as far as one can tell without running it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.Name):
            yield node.id


def loaded_by(*arguments, statuses=(0,)):
    """The modules that a fresh interpreter loads for `python ARGUMENTS`, read from its own account of imports."""
    command = [sys.executable, "-X", "importtime", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode in statuses, done.stderr
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}


def top_level(modules):
    return {module.partition(".")[0] for module in modules}


def test_help_loads_nothing_heavy_and_only_the_command_line():
    loaded = loaded_by("-m", "gputop_llm", "--help")

    assert "gputop_llm.cli" in loaded
    assert top_level(loaded) & HEAVY == set()
    assert {m for m in loaded if m.startswith(("gputop_llm.sources.", "gputop_llm.demo.", "gputop_llm.tui."))} == set()


def test_a_snapshot_loads_no_screen_and_no_torch():
    # 3 and 4: on a machine without a GPU, or with one that cannot be read.
    loaded = loaded_by("-m", "gputop_llm", "snapshot", "--json", statuses=(0, 3, 4))

    assert "gputop_llm.session" in loaded
    assert top_level(loaded) & {"textual", "rich", "torch", "nvtx", "numpy"} == set()


def test_importing_the_session_loads_nothing_heavy():
    loaded = loaded_by("-c", "import gputop_llm.session")

    assert "gputop_llm.session" in loaded
    assert top_level(loaded) & HEAVY == set()


def test_importing_the_session_loads_no_rule():
    """They take as long to load as all the rest of it, and the first frame does without them."""
    loaded = loaded_by("-c", "import gputop_llm.session")

    assert "gputop_llm.symptoms.table" in loaded
    assert {
        m for m in loaded if m.startswith(("gputop_llm.symptoms.rules", "gputop_llm.notify", "gputop_llm.store"))
    } == set()


def test_the_monitor_loads_no_timeline():
    loaded = loaded_by("-c", "import gputop_llm.tui.app, gputop_llm.tui.screens.help, gputop_llm.commands.tui")

    assert "gputop_llm.tui.app" in loaded
    assert "numpy" not in top_level(loaded)
    assert {m for m in loaded if m.startswith(("gputop_llm.timeline", "gputop_llm.verdict"))} == set()


def test_the_display_loads_openssl_only_where_tls_is_spoken():
    begin = "from gputop_llm import without_tls; without_tls.load('asyncio', 'http.client'); "
    plain = "from gputop_llm.sources.scrape import HttpReader; import gputop_llm.tui.app; HttpReader()"
    spoken = "; import gputop_llm.notify.webhook; from gputop_llm.sources import scrape; scrape._tls_context(None)"

    assert {"_ssl", "_hashlib"} & loaded_by("-c", begin + plain) == set()
    assert "_ssl" in loaded_by("-c", begin + plain + spoken)


def test_the_simulator_loads_no_openssl():
    loaded = loaded_by("-c", "import gputop_llm.demo.server")

    assert "http.server" in loaded
    assert "_ssl" not in loaded


@pytest.mark.parametrize("heavy", ["textual", "psutil", "urllib3"])
def test_a_heavy_import_would_be_seen(heavy):
    assert heavy in top_level(loaded_by("-c", f"import {heavy}"))


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_only_the_command_line_and_the_app_decide_to_exit(path):
    exits = {name for name in used_names(path) if EXITS.fullmatch(name)}

    if relative(path) not in MAY_EXIT:
        assert exits == set()


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_only_named_modules_start_processes(path):
    spawners = {name for name in used_names(path) if SPAWNERS.fullmatch(name)}

    if relative(path) not in MAY_SPAWN:
        assert spawners == set()


def test_no_source_knows_another_source():
    sources = {path for path in MODULES if re.search(r"^class \w+Source\b", path.read_text(), re.MULTILINE)}
    named = {"gputop_llm." + relative(path).removesuffix(".py").replace("/", "."): path for path in sources}
    assert {"gputop_llm.sources.nvml", "gputop_llm.sources.discover"} <= set(named), "the pattern has gone stale"
    known = {(name, used) for name, path in named.items() for used in used_names(path) if used in named}

    assert known == set()


@pytest.mark.parametrize(
    "path",
    sorted(path for folder in ("gputop_llm", "tests", "tools", "benchmarks") for path in (ROOT / folder).rglob("*.py")),
    ids=lambda path: path.relative_to(ROOT).as_posix(),
)
def test_no_module_is_longer_than_400_lines(path):
    lines = path.read_text(encoding="utf-8").count("\n")

    assert lines <= 400
