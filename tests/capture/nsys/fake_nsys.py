"""An nsys that fails as real ones were seen to: `make(folder, FAILURE)` writes its binary.

It keeps its sessions in a file, answers `--help`, `sessions list`, `start`, `stop` and `export`, and does one thing
wrong.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

_SCRIPT = r"""#!PYTHON
import json, os, pathlib, sqlite3, sys, time
HERE = pathlib.Path(__file__).parent
FAILS = FAILURE
state = HERE / "sessions.json"
argv = sys.argv[1:]
sessions = json.loads(state.read_text())
options = dict(one.partition("=")[::2] for one in argv if one.startswith("--"))
def save(): state.write_text(json.dumps(sessions))
def fail(words, code=1): print(words); sys.exit(code)
def export(path):
    db = sqlite3.connect(path)
    db.executescript("CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);"
        "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, globalTid INTEGER, text TEXT);"
        "INSERT INTO NVTX_EVENTS VALUES (1, 2, 3, 'step');")
    db.commit()
if "--help" in argv:
    for name in HELP: print(f"\t{name}=\n\n\t   words")
elif argv == ["--version"]: print("NVIDIA Nsight Systems version 2023.4.4.54-fake")
elif argv[:2] == ["sessions", "list"]:
    print("   ID  TIME  STATE LAUNCH NAME")
    for number, (how, launched, name) in sessions.items(): print(f" {number}  00:01  {how}  {launched} {name}")
elif argv[0] == "start":
    (HERE / "start.json").write_text(json.dumps(options))
    if FAILS == "start": fail(WORDS)
    if FAILS == "gone": sessions.clear(); save(); sys.exit(0)
    if FAILS == "slow": time.sleep(1.0)
    which = options.get("--session") or options["--session-new"]
    how = "StartRange" if FAILS == "range" else "Collection"
    old = sessions.get(which, ["", 0, which])
    sessions[which if which in sessions else "77"] = [how, old[1], old[2]]
    (HERE / "output").write_text(options["--output"]); save()
elif argv[0] == "stop":
    if FAILS == "stop": fail(WORDS)
    for one in sessions.values(): one[0] = "Launched"
    save()
    if FAILS == "slow": time.sleep(1.0)
    output = pathlib.Path((HERE / "output").read_text())
    if FAILS == "elsewhere": output = HERE / "nsys-report-1a2b"
    print("Generating '/tmp/x.qdstrm'\n\r[1/2] [0%       ] a\r[1/2] [=====100%] a", end="")
    print("\nGenerated:")
    if FAILS == "importer":
        pathlib.Path(f"{output}.qdstrm").touch()
        print(f"Importer error status: An unknown error occurred.\n    {output}.qdstrm")
        sys.exit(0)
    if FAILS == "range": sys.exit(0)
    pathlib.Path(f"{output}.nsys-rep").write_text("NVIDIA Tegra Profiler Report")
    print(f"    {output}.nsys-rep")
    if FAILS != "no-export": export(f"{output}.sqlite"); print(f"    {output}.sqlite")
elif argv[0] == "export":
    export(options["--output"])
"""
HELP = ("--session", "--session-new", "--sample", "--cpuctxsw", "--export", "--output", "--force-overwrite")


def make(
    folder: Path, failure: str = "", words: str = "", without: tuple[str, ...] = (), launched: bool = True
) -> Path:
    """Its binary, beside the library by which a process under it is known."""
    folder.mkdir(parents=True, exist_ok=True)
    script = (
        _SCRIPT.replace("#!PYTHON", f"#!{sys.executable}")
        .replace("FAILURE", repr(failure))
        .replace("WORDS", repr(words))
    )
    script = script.replace("HELP", repr(tuple(name for name in HELP if name not in without)))
    path = folder / "nsys"
    path.write_text(script)
    path.chmod(0o755)
    (folder / "sessions.json").write_text(json.dumps({"4711": ["Launched", 1, "theirs"]} if launched else {}))
    return path
