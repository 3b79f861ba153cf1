"""Reads of /proc: against this machine's own, and against names made to confuse."""

import os
import subprocess
import sys

import pytest

from gputop_llm.sources.procfs import ProcFs, parse_stat, split_argv
from tests.support.fake_proc import BOOT_S, FakeProc


def test_own_process_is_read_as_the_kernel_knows_it():
    stat = ProcFs().stat(os.getpid())

    assert (stat.ppid, stat.pgrp, stat.session) == (os.getppid(), os.getpgrp(), os.getsid(0))
    assert stat.state == "R"
    assert stat.threads >= 1
    assert stat.rss_pages > 100


def test_start_time_is_within_seconds_of_the_clock():
    before = ProcFs().start_s(ProcFs().stat(os.getpid()).start_ticks)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        proc = ProcFs()
        started = proc.start_s(proc.stat(child.pid).start_ticks)

    assert started >= before


@pytest.mark.parametrize("name", ["plain", "a b", "x) R 1 1 1", "((", ")", "café", ""])
def test_a_name_of_blanks_and_brackets_does_not_shift_the_fields(name):
    line = f"7 ({name}) S 42 43 44 " + "0 " * 7 + "5 6 0 0 20 0 9 0 777 0 55 " + "0 " * 28

    stat = parse_stat(line.encode())

    assert (stat.comm, stat.state, stat.ppid, stat.pgrp, stat.session) == (name, "S", 42, 43, 44)
    assert (stat.cpu_ticks, stat.threads, stat.start_ticks, stat.rss_pages) == (11, 9, 777, 55)


def test_a_line_that_is_cut_is_refused_not_guessed():
    with pytest.raises(ValueError, match="not a stat line"):
        parse_stat(b"7 (x) S 1 1")


def test_a_title_loses_its_padding_and_an_argument_keeps_its_blanks():
    assert split_argv(b"VLLM::EngineCore" + b" " * 30 + b"\0\0\0") == ("VLLM::EngineCore",)
    assert split_argv(b"python\0-c\0a b\0\0c\0") == ("python", "-c", "a b", "", "c")
    assert split_argv(b"") == ()


def test_bytes_that_are_no_utf8_can_be_printed():
    (word,) = split_argv(b"\xff\xfemodel\0")

    assert word.encode("utf-8").endswith(b"model")


def test_a_file_longer_than_one_read_comes_whole(tmp_path):
    proc = FakeProc(tmp_path)
    proc.write("9/cmdline", b"word\0" * 5000)

    assert len(ProcFs(proc.root).argv(9)) == 5000


def test_a_table_that_comes_in_pieces_comes_whole():
    with open("/proc/self/maps", "rb") as file:
        size = len(file.read())

    assert size > 4096
    assert len(ProcFs().read("self/maps")) >= 0.9 * size


def test_a_file_is_cut_at_its_limit(tmp_path):
    proc = FakeProc(tmp_path)
    proc.write("9/maps", b"x" * 50_000)

    assert len(ProcFs(proc.root).read("9/maps", 10_000)) == 10_000


def test_boot_time_is_found_behind_the_cpu_lines(tmp_path):
    assert ProcFs(FakeProc(tmp_path).root).boot_s() == BOOT_S


def test_own_open_files_and_environment_are_seen(tmp_path):
    with open(tmp_path / "open-here", "w") as file:
        assert file.name in ProcFs().open_files(os.getpid())
    assert ProcFs().environ(os.getpid()).get("PATH")
    assert ProcFs().status(os.getpid())["Pid"] == str(os.getpid())


def test_a_process_that_is_gone_says_so():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()

    with pytest.raises(FileNotFoundError):
        ProcFs().stat(child.pid)
