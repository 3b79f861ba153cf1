"""Descriptors of a target that may be anything: what is no pipe or memfd of ours is not even opened."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket

import pytest

from gputop_llm.capture.inject import InjectionRefused
from gputop_llm.capture.inject.handover import open_pipe, tell, write_library


@pytest.fixture
def closing():
    with contextlib.ExitStack() as stack:

        def close_later(*descriptors):
            for descriptor in descriptors:
                stack.callback(os.close, descriptor)
            return descriptors

        yield close_later


@pytest.mark.parametrize("flag", [os.O_RDONLY, os.O_WRONLY], ids=["to read", "to write"])
def test_a_file_in_place_of_a_pipe_is_not_opened(tmp_path, monkeypatch, closing, flag):
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    try:
        (file,) = closing(os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT))
        # The kernel takes a lease away when anybody opens the file.
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        with pytest.raises(InjectionRefused, match="has replaced the client's pipe"):
            open_pipe(os.getpid(), file, flag)
        assert fcntl.fcntl(file, fcntl.F_GETLEASE) == fcntl.F_WRLCK
        with pytest.raises(InjectionRefused, match="has replaced the client's file"):
            write_library(os.getpid(), file, b"library")
        assert fcntl.fcntl(file, fcntl.F_GETLEASE) == fcntl.F_WRLCK
    finally:
        signal.signal(signal.SIGIO, before)


def test_what_else_a_descriptor_may_be(closing):
    (null,) = closing(os.open("/dev/null", os.O_RDWR))
    with socket.socket() as connection:
        for descriptor in (null, connection.fileno()):
            with pytest.raises(InjectionRefused, match="has replaced the client's pipe"):
                open_pipe(os.getpid(), descriptor, os.O_RDONLY)
    with pytest.raises(InjectionRefused, match="can't be opened"):
        open_pipe(os.getpid(), 1 << 20, os.O_RDONLY)


def test_a_memfd_is_filled_once(closing):
    (empty,) = closing(os.memfd_create("some", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    write_library(os.getpid(), empty, b"library")
    assert os.pread(empty, 100, 0) == b"library"
    for flags in (os.MFD_ALLOW_SEALING, 0):
        (other,) = closing(os.memfd_create("some", os.MFD_CLOEXEC | flags))
        if flags:
            os.write(other, b"something")
        with pytest.raises(InjectionRefused, match="has replaced the client's file"):
            write_library(os.getpid(), other, b"library")


def test_a_pipe_that_the_target_has_filled_keeps_nobody_waiting(closing):
    theirs, end = closing(*os.pipe())
    os.set_blocking(end, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(end, bytes(4096))
    (ours,) = closing(open_pipe(os.getpid(), end, os.O_WRONLY))
    with pytest.raises(InjectionRefused, match="takes nothing"):
        tell(ours, b"G")
    os.read(theirs, 1 << 20)
    tell(ours, b"G")
    assert os.read(theirs, 10) == b"G"
