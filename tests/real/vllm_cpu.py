"""A real vLLM server on the CPU, as a context manager."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.real.vllm_venv import model_directory, vllm_venv

#: Longest start seen on two busy cores: 45 s.
START_DEADLINE_S = 240.0
STOP_DEADLINE_S = 15.0


class VllmServer:
    """One running server; stopped with all its processes when the block ends.

    Args:
        model: "tiny" (2 layers, answers at once) or "small" (12 layers, steps of 30-40 ms).
        tp: tensor-parallel size.
        dp: data-parallel size.
        api_servers: how many API server processes share the port.
        as_module: start it as `python -m vllm.entrypoints.openai.api_server` rather than as
            `vllm serve`; for one API server and one data-parallel rank.
        extra_args: further arguments of vLLM.
        environ: further environment variables of it.
    """

    #: What the server calls its model.
    served_name = "tiny"

    def __init__(
        self,
        model: str = "tiny",
        tp: int = 1,
        dp: int = 1,
        api_servers: int = 1,
        as_module: bool = False,
        extra_args: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.model, self.tp, self.dp, self.api_servers, self.as_module = model, tp, dp, api_servers, as_module
        self.extra_args = tuple(extra_args)
        self.environ = dict(environ or {})
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log_path = Path(tempfile.mkstemp(prefix="vllm-", suffix=".log")[1])
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> VllmServer:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()
        self.log_path.unlink(missing_ok=True)

    @property
    def root_pid(self) -> int:
        """The PID of the process that was started; all others descend from it."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def start(self) -> float:
        """Starts the server and waits until it is healthy; returns the seconds that took."""
        command, environ = self._command()
        begun = time.monotonic()
        with open(self.log_path, "ab") as log:
            self._process = subprocess.Popen(
                command, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        try:
            while not self.is_healthy():
                status = self._process.poll()
                if status is not None:
                    raise RuntimeError(f"vLLM ended with {status} while starting:\n{self.log_tail()}")
                if time.monotonic() - begun > START_DEADLINE_S:
                    raise RuntimeError(f"vLLM was not healthy after {START_DEADLINE_S:.0f} s:\n{self.log_tail()}")
                time.sleep(0.1)
        except BaseException:  # KeyboardInterrupt too: no __exit__ will follow
            self.stop(grace_s=0)
            self.log_path.unlink()
            raise
        return time.monotonic() - begun

    def stop(self, grace_s: float = STOP_DEADLINE_S) -> None:
        """Ends every process of the server, if there is one; its root has `grace_s` seconds to do so itself."""
        if self._process is None:
            return
        group = self._process.pid
        shared_memory = _shared_memory(self.pids())
        # First in its own way, which removes its shared memory; then without asking.
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        self._process.wait()
        self._process = None
        _wait_until_gone(group)
        for path in shared_memory:  # what two tensor-parallel workers, or killed ones, leave behind
            path.unlink(missing_ok=True)

    def pids(self) -> dict[int, str]:
        """PID → command line (NULs as spaces) of every process of the server."""
        return {} if self._process is None else _group_members(self._process.pid)

    def is_healthy(self) -> bool:
        """Whether /health answers 200."""
        try:
            return self.get("/health")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of a GET."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def log_tail(self, lines: int = 40) -> str:
        """The last lines that the server wrote."""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def _command(self) -> tuple[list[str], dict[str, str]]:
        venv = vllm_venv()
        model = str(model_directory(venv, self.model))
        if self.as_module:
            assert self.dp == self.api_servers == 1, "only `vllm serve` starts several API servers"
            command = [str(venv / "bin/python"), "-m", "vllm.entrypoints.openai.api_server", "--model", model]
        else:
            command = [str(venv / "bin/vllm"), "serve", model]
        command += ["--served-model-name", self.served_name, "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--load-format", "dummy", "--enforce-eager", "--max-model-len", "1024", "--max-num-seqs", "8"]
        command += ["--block-size", "32", "--num-gpu-blocks-override", "80"]
        if self.tp > 1:
            command += ["--tensor-parallel-size", str(self.tp)]
        if self.dp > 1:
            command += ["--data-parallel-size", str(self.dp)]
        if self.api_servers > 1:
            command += ["--api-server-count", str(self.api_servers)]
        environ = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
            **self.environ,
        }
        if self.tp > 1:
            environ["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(str(rank) for rank in range(self.tp))
        return [*command, *self.extra_args], environ


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _group_members(group: int) -> dict[int, str]:
    members = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The name in parentheses may contain spaces; state, ppid and pgrp follow it.
                state, _, pgrp = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
                if int(pgrp) == group and state != "Z":
                    command_line = (entry / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ")
                    members[int(entry.name)] = command_line.decode(errors="replace")
    return members


def _shared_memory(pids: Iterable[int]) -> set[Path]:
    """The files in /dev/shm that these processes have mapped."""
    files = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            maps = Path(f"/proc/{pid}/maps").read_text()
            files |= {Path(name) for name in re.findall(r"/dev/shm/\S+$", maps, re.MULTILINE)}
    return files


def _wait_until_gone(group: int) -> None:
    deadline = time.monotonic() + STOP_DEADLINE_S
    while _group_members(group):
        if time.monotonic() > deadline:
            raise RuntimeError(f"processes of vLLM are still there: {_group_members(group)}")
        time.sleep(0.05)
