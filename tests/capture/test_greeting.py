"""What the first words of the clients decide."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest

from gputop_llm.capture import recording
from gputop_llm.capture.folder import CaptureFolder
from gputop_llm.capture.preflight import Refused
from gputop_llm.capture.window import Window
from gputop_llm.timeline import native_format as form
from gputop_llm.timeline.native_format import Chunk, Kinds


@dataclass
class Pipes:
    commands: int
    records: int


@pytest.mark.parametrize("version", [form.VERSION - 1, form.VERSION, form.VERSION + 1])
def test_a_client_of_another_version_is_refused_before_the_window(tmp_path, version):
    heard, commands = os.pipe()
    records, say = os.pipe()
    hello = form.HELLO.pack(version, 7, 8, 130000) + b"/usr/lib/libcupti.so.13"
    os.write(say, form.MAGIC + form.CHUNK_HEADER.pack(Chunk.HELLO, len(hello)) + hello)
    folder = CaptureFolder(tmp_path, "one")
    folder.make()
    window = Window([("rank0_pid7.gtw", Pipes(commands, records))], folder, Kinds.KERNELS, 10**9, 1 << 20)
    try:
        if version == form.VERSION:
            recording.greet(window, lambda: False)
        else:
            with pytest.raises(Refused, match=f"speaks version {version} of the record, and this gputop-llm"):
                recording.greet(window, lambda: False)
        os.set_blocking(heard, False)
        with pytest.raises(BlockingIOError):
            os.read(heard, 1)
    finally:
        window.put_away()
        folder.close()
        os.close(heard)
        os.close(say)
