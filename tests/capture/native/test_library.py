"""The library as a file: what it needs of a target, what it says of itself, and what it can't even name."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess

import numpy as np
import pytest

from gputop_llm.capture import native as package
from gputop_llm.capture.inject.seccomp import CALLS
from gputop_llm.capture.recording import HELLO_WITHIN_S
from gputop_llm.errors import GputopError
from gputop_llm.timeline import native_format as form
from tests.capture.native.hosting import NATIVE, ROWS, build_hook

OLDEST_GLIBC = (2, 28)


def sections(data):
    """ELF64 sections by name: (type, offset, size, link)."""
    offset, entry, count, names_at = struct.unpack_from("<Q10xHHH", data, 0x28)
    found = [struct.unpack_from("<IIQQQQII16x", data, offset + entry * number) for number in range(count)]
    names = found[names_at]
    texts = data[names[4] : names[4] + names[5]]
    return {texts[s[0] :].partition(b"\0")[0].decode(): (s[1], s[4], s[5], s[6]) for s in found}


def text(data, strings, at):
    start = strings[1] + at
    return data[start : data.index(b"\0", start)].decode()


def dynamic(data):
    """(tag, value) of the dynamic section."""
    _, offset, size, _ = sections(data)[".dynamic"]
    return [struct.unpack_from("<QQ", data, at) for at in range(offset, offset + size, 16)]


def needed_versions(data):
    """Each symbol version that another library must have."""
    parts = sections(data)
    _, at, _, _ = parts[".gnu.version_r"]
    strings = parts[".dynstr"]
    found = []
    while True:
        _, count, _, first, following = struct.unpack_from("<HHIII", data, at)
        item = at + first
        for _ in range(count):
            name_at, onward = struct.unpack_from("<8xII", data, item)
            found.append(text(data, strings, name_at))
            item += onward
        if not following:
            return found
        at += following


@pytest.fixture(scope="module")
def library(native):
    return native.client.read_bytes()


def test_it_needs_the_c_library_alone_and_none_newer_than_2_28(library):
    needed = {text(library, sections(library)[".dynstr"], value) for tag, value in dynamic(library) if tag == 1}
    versions = needed_versions(library)

    assert needed <= {"libc.so.6", "libpthread.so.0", "libdl.so.2"}
    assert versions
    assert all(re.fullmatch(r"GLIBC_2\.\d+(\.\d+)?", version) for version in versions)
    assert max(tuple(map(int, version[6:].split("."))) for version in versions) <= OLDEST_GLIBC


def test_loading_it_runs_nothing_and_it_stays(library):
    tags = dict(dynamic(library))

    # DT_INIT, DT_FINI, and the arrays of such functions.
    assert not tags.keys() & {12, 13, 25, 26, 32}
    assert tags[0x6FFFFFFB] & 0x8, "nodelete"
    assert ".tdata" not in sections(library)
    assert ".tbss" not in sections(library)


def test_three_names_are_seen_from_outside(library, native):
    shown = subprocess.run(["nm", "-D", "--defined-only", native.client], capture_output=True, text=True, check=True)

    assert {line.split()[-1] for line in shown.stdout.splitlines()} == {
        "gputop_client_serve",
        "gputop_client_busy",
        "InitializeInjection",
    }


def test_what_killed_live_engines_is_in_neither_the_source_nor_the_library(library):
    """Tearing CUPTI down, and turning on the tracing of graphs as wholes (activity 51) late."""
    source = "".join(path.read_text() for path in sorted(NATIVE.glob("*.[ch]")))

    assert "cuptiActivityFlushAll" in source
    assert b"cuptiActivityFlushAll\0" in library
    for word in ("Finalize", "TEARDOWN", "Teardown", "GRAPH_TRACE"):
        assert word not in source
        assert word.encode() not in library
    assert not re.search(r"\b(51|0x33)\b", source)
    assert set(re.findall(r"ACTIVITY_[A-Z_]+ = (\d+)", source)) == {"1", "2", "4", "5", "10", "22"}
    # Whatever is enabled is one of those names.
    (table,) = re.findall(r"wanted\[ACTIVITIES_MOST\] = \{(.*?)\};", source, re.DOTALL)
    assert len(re.findall(r"\{KINDS_[A-Z]+, ACTIVITY_[A-Z_]+\}", table)) == table.count("{")
    assert re.findall(r"(?:\.|->)enable\((.*?)\)", source) == ["wanted[at].activity"]


def test_it_allocates_nothing_in_the_targets_heap(native):
    used = subprocess.run(["nm", "-D", "--undefined-only", native.client], capture_output=True, text=True, check=True)
    names = {line.split()[-1].partition("@")[0] for line in used.stdout.splitlines()}

    assert "mmap" in names
    assert (
        names & {"malloc", "calloc", "realloc", "free", "strdup", "kill", "exit", "abort", "fopen", "system"} == set()
    )


#: What each function of the C library calls in the kernel; those of a `run` server at its start aside.
KERNEL_CALLS = {
    "clock_gettime": ["clock_gettime"], "close": ["close"], "fcntl": ["fcntl"], "getpid": ["getpid"],
    "mmap": ["mmap"], "munmap": ["munmap"], "nanosleep": ["nanosleep", "clock_nanosleep"], "open": ["openat"],
    "poll": ["poll"], "prctl": ["prctl"], "pread": ["pread64"], "read": ["read"], "write": ["write"],
    "pthread_create": ["clone", "clone3", "mmap", "mprotect", "rseq", "set_robust_list", "madvise", "exit"],
    "sigprocmask": ["rt_sigprocmask"], "syscall": ["gettid"], "dlopen": ["futex"], "dlsym": ["futex"],
    "dlclose": ["futex"], "dl_iterate_phdr": ["futex"],
}  # fmt: skip
AT_THE_START = {
    "accept4", "bind", "closedir", "connect", "fchmod", "getenv", "geteuid", "getsockopt", "listen", "mkdir", "opendir",
    "readdir", "socket", "unlink",
}  # fmt: skip
NO_KERNEL_CALLS = {
    "__errno_location", "__stack_chk_fail", "memchr", "memcmp", "memcpy", "memset", "pthread_attr_destroy",
    "pthread_attr_init", "pthread_attr_setdetachstate", "sigfillset", "snprintf", "strchr", "strcmp", "strlen",
    "strncmp", "strnlen", "strrchr", "strspn", "strstr",
}  # fmt: skip


def test_filters_are_asked_about_all_that_it_calls(native):
    used = subprocess.run(["nm", "-D", "--undefined-only", native.client], capture_output=True, text=True, check=True)
    names = {line.split()[-1].partition("@")[0] for line in used.stdout.splitlines()}

    assert names <= KERNEL_CALLS.keys() | AT_THE_START | NO_KERNEL_CALLS
    assert {call for name in names & KERNEL_CALLS.keys() for call in KERNEL_CALLS[name]} <= CALLS.keys()
    assert set(re.findall(r"SYS_(\w+)", "".join(path.read_text() for path in NATIVE.glob("*.c")))) == {
        "gettid",
        "fstat",
    }


def test_a_client_waits_longer_than_all_ranks_may_take_to_be_reached():
    (wait_ms,) = re.findall(r"COMMAND_WAIT_MS = (\d+)", (NATIVE / "window.c").read_text())

    assert int(wait_ms) / 1000 == package.COMMAND_WAIT_S
    assert package.COMMAND_WAIT_S > package.REACH_WITHIN_S + HELLO_WITHIN_S + 10


def test_c_and_python_have_the_same_layout(native, tmp_path):
    rows = {"kernel": form.KERNEL_ROW, "copy": form.COPY_ROW, "memset": form.MEMSET_ROW, "call": form.CALL_ROW}
    lines = [f'printf("{name}.{field[0]} %zu\\n", offsetof(struct wire_{name}, {field[0]}));'
             for name, row in rows.items() for field in row]  # fmt: skip
    structures = ["header", "hello", "refused", "clocks", "started", "ended", "command_packet"]
    lines += [f'printf("{name} %zu\\n", sizeof(struct wire_{name}));' for name in [*structures, *rows]]
    (tmp_path / "layout.c").write_text(
        f'#include <stddef.h>\n#include <stdio.h>\n#include "{NATIVE}/wire.h"\nint main(void) {{ {" ".join(lines)} }}\n'
    )
    subprocess.run([shutil.which("cc") or "gcc", "-o", tmp_path / "layout", tmp_path / "layout.c"], check=True)
    shown = subprocess.run([tmp_path / "layout"], capture_output=True, text=True, check=True).stdout

    expected = {f"{name}.{field[0]}": np.dtype(row).fields[field[0]][1] for name, row in rows.items() for field in row}
    expected |= {name: np.dtype(row).itemsize for name, row in rows.items()}
    expected |= {
        "header": form.CHUNK_HEADER.size,
        "hello": form.HELLO.size,
        "refused": form.REFUSED.size,
        "clocks": form.CLOCKS.size,
        "started": form.STARTED.size,
        "ended": form.END.size,
        "command_packet": form.COMMAND.size,
    }
    assert {key: int(value) for key, value in map(str.split, shown.splitlines())} == expected
    assert len(ROWS) == len(rows)


def test_c_and_python_number_things_alike():
    source = (NATIVE / "wire.h").read_text()
    numbered = {name: int(number) for name, number in re.findall(r"\b([A-Z_]+) = (\d+)", source)}

    for prefix, enum in {
        "CHUNK": form.Chunk, "KINDS": form.Kinds, "COMMAND": form.Command, "END": form.EndReason,
    }.items():  # fmt: skip
        assert {
            name.removeprefix(f"{prefix}_"): number
            for name, number in numbered.items()
            if name.startswith(f"{prefix}_") and name != "KINDS_ALL"
        } == {member.name: member.value for member in enum}
    assert f'WIRE_MAGIC "{form.MAGIC.decode()}"' in source
    assert f'WIRE_COMMAND_MAGIC "{form.COMMAND_MAGIC.decode()}"' in source
    assert f"WIRE_MAX_WINDOW_NS {form.MAX_WINDOW_NS}ull" in source
    assert form.MAX_WINDOW_BYTES == 1 << 30
    assert "WIRE_MAX_WINDOW_BYTES (1ull << 30)" in source


def test_it_compiles_without_a_warning(tmp_path):
    hook = build_hook()
    command = [shutil.which("cc") or "gcc", *hook.FLAGS, "-Werror", "-o", tmp_path / "client.so", *NATIVE.glob("*.c")]

    subprocess.run([*command, *hook.LIBRARIES], check=True)


def test_an_installation_without_it_says_so(monkeypatch):
    monkeypatch.setattr(package, "LIBRARY", "no-such-library.so")

    with pytest.raises(GputopError, match="built without the client's library"):
        package.library_bytes()


def test_the_installation_of_this_checkout_has_it():
    assert package.library_bytes().startswith(b"\x7fELF"), "tools/dev.py builds it"


def test_without_a_compiler_the_hook_says_why(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)

    assert "no C compiler" in build_hook().build(sorted(NATIVE.glob("*.c")), tmp_path / "client.so")
    assert list(tmp_path.iterdir()) == []
