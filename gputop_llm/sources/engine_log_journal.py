"""What an engine wrote to systemd's journal, asked of journalctl: seldom, so many lines at most, and not for long."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import time

EVERY_S = 20.0
_WITHIN_S = 3.0
_BYTES = 256 << 10
_LINES = 400


class Journal:
    """The lines of one control group: of its start and the newest, then what is new, `_LINES` at a time at most.

    Args:
        cgroup: its path, as in /proc/PID/cgroup.
        since_s: wall time of the first line that counts.
    """

    def __init__(self, cgroup: str, since_s: float) -> None:
        self._match = f"_SYSTEMD_CGROUP={cgroup}"
        self._since_s = since_s
        self._cursor: str | None = None
        self.problem: str | None = None

    def read(self) -> list[tuple[bytes, float]]:
        """The lines that are new, each with the wall time at which it was written; `problem` says why there is none."""
        tool = shutil.which("journalctl")
        if tool is None:
            self.problem = "it goes to the journal, and there is no journalctl here"
            return []
        command = [tool, "--quiet", "--no-pager", "--output=json", "--output-fields=MESSAGE"]
        newest = [f"--lines={_LINES}"]
        if self._cursor is not None:
            answers = [_asked([*command, *newest, f"--after-cursor={self._cursor}", self._match], _BYTES)]
        else:
            since = f"--since=@{self._since_s:.0f}"
            # The beginning; and where there is more than that, the end.
            answers = [_asked([*command, since, self._match], _BYTES)]
            if answers[0] is not None and len(answers[0]) >= _BYTES:
                answers.append(_asked([*command, since, *newest, self._match], _BYTES))
        if None in answers:
            self.problem = f"journalctl did not answer within {_WITHIN_S:g} s"
            return []
        lines = [line for answer in answers if answer is not None for line in answer.splitlines()]
        entries = [entry for line in lines if (entry := self._entry(line)) is not None]
        known = self._cursor is not None or bool(entries)
        self.problem = (
            None if known else "its lines in the journal can't be read (root, or the group systemd-journal, may)"
        )
        return entries

    def _entry(self, line: bytes) -> tuple[bytes, float] | None:
        try:
            entry = json.loads(line)
            message, at_s = entry["MESSAGE"], int(entry["__REALTIME_TIMESTAMP"]) / 1e6
            self._cursor = str(entry["__CURSOR"])
            # What is no UTF-8 comes as a list of bytes.
            text = bytes(message) if isinstance(message, list) else str(message).encode("utf-8", "backslashreplace")
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
        return text, at_s


def _asked(command: list[str], most_bytes: int) -> bytes | None:
    """What it printed, about `most_bytes` at most; None if it took too long or did not start. It is gone afterwards."""
    until = time.monotonic() + _WITHIN_S
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
    except OSError:
        return None
    assert process.stdout is not None
    parts: list[bytes] = []
    size = 0
    try:
        while size < most_bytes:
            ready, _, _ = select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                return None
            part = os.read(process.stdout.fileno(), 1 << 16)
            if not part:
                break
            parts.append(part)
            size += len(part)
        return b"".join(parts)
    finally:
        process.stdout.close()
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()
