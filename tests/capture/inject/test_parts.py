"""The parts that injections are made of, where they can be compared with something else."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputop_llm.capture.inject import stub
from gputop_llm.capture.inject.elf import _SYMBOL, Library
from gputop_llm.capture.inject.frames import Call, UnknownState, build
from gputop_llm.capture.inject.memory import Maps, Memory
from gputop_llm.capture.inject.ptrace import Registers
from gputop_llm.capture.inject.runtime import find_runtime
from gputop_llm.capture.inject.waits import LONGEST_LIMIT_S, Wait, _limit_s
from gputop_llm.capture.native_way import LATER_S
from tests.capture.inject.support import HERE

INJECT = HERE.parents[2] / "gputop_llm/capture/inject"
LIBC = ctypes.CDLL(None)


@pytest.fixture
def own_memory():
    with Memory(os.getpid()) as memory:
        yield memory


def address_of(name):
    return ctypes.cast(getattr(LIBC, name), ctypes.c_void_p).value


def test_the_stub_is_what_its_source_says(tmp_path):
    subprocess.run(["gcc", "-c", "-o", tmp_path / "stub.o", INJECT / "stub.S"], check=True, timeout=60)
    subprocess.run(
        ["objcopy", "-O", "binary", "-j", ".text", tmp_path / "stub.o", tmp_path / "stub.bin"], check=True, timeout=60
    )
    assert (tmp_path / "stub.bin").read_bytes() == stub.CODE


def test_functions_are_found_in_memory_where_the_loader_has_put_them(own_memory):
    runtime = find_runtime(Maps.of(os.getpid()), own_memory)
    names = [name.decode() for name in stub.FUNCTIONS]
    assert [runtime.pthread_create, *runtime.functions] == [address_of(n) for n in ("pthread_create", *names)]
    assert own_memory.read(runtime.gadget, 3) == b"\x0f\x05\xc3"
    assert len(runtime.restorers) >= 1


@pytest.fixture
def libc(own_memory):
    maps = Maps.of(os.getpid())
    mapping = next(m for m in maps.between(0, 1 << 64) if "/libc.so.6" in m.name and m.offset == 0)
    return Library(own_memory, mapping.start)


def test_a_function_that_a_tracer_has_replaced_is_the_tracers(libc, monkeypatch):
    # As nsys does it: what lies below the library counts from it all the same.
    hook, read = 0x5000, Library._bytes

    def patched(self, address, count):
        data = read(self, address, count)
        if count != _SYMBOL.size:
            return data
        *before, _, size = _SYMBOL.unpack(data)
        return _SYMBOL.pack(*before, (hook - self.base) % (1 << 64), size)

    monkeypatch.setattr(Library, "_bytes", patched)

    assert libc.function(b"pthread_create") == hook


def test_what_a_library_does_not_export_is_not_found(libc):
    assert libc.function(b"pthread_create") == address_of("pthread_create")
    for name in (b"no_such_function", b"", b"pthread_creat", b"environ"):
        assert libc.function(name) is None


class HostileMemory:
    """A library's first pages, damaged."""

    def __init__(self, data, base):
        self.data, self.base = data, base

    def read(self, address, count):
        if not self.base <= address < self.base + len(self.data):
            raise OSError(5, "nothing there")
        assert count < 1 << 20
        return self.data[address - self.base : address - self.base + count]


@pytest.fixture(scope="module")
def sound(built):
    return (built / "hello.so").read_bytes()


@given(st.data())
def test_a_damaged_library_is_refused_or_has_no_function(sound, data):
    damaged = bytearray(sound)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, 0x3000))
        value = data.draw(st.sampled_from([0, 1, 0x7F, 0xFF, 2**31, 2**63, 2**64 - 1]))
        damaged[at : at + 8] = struct.pack("<Q", value)
    memory = HostileMemory(bytes(damaged), 0x7F0000000000)
    try:
        library = Library(memory, memory.base)
    except (ValueError, OSError):
        return
    found = library.function(stub.ENTRY_SYMBOL)
    assert found is None or found >= memory.base
    for _, count in library.code():
        assert count >= 0


# -- maps ----------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 9)), max_size=40), st.integers(0, 3000))
def test_a_mapping_is_found_by_address(pieces, page):
    lines, spans, at = [], [], 0
    for gap, size in pieces:
        start, end = (at + gap) * 4096, (at + gap + size) * 4096
        spans.append((start, end))
        lines.append(f"{start:x}-{end:x} rw-p 00000000 00:00 0\n")
        at += gap + size
    maps = Maps("".join(lines).encode())
    address = page * 4096 + 7
    expected = [span for span in spans if span[0] <= address < span[1]]
    found = maps.at(address)
    assert ([] if found is None else [(found.start, found.end)]) == expected
    low, high = address, address + 40 * 4096
    assert [(m.start, m.end) for m in maps.between(low, high)] == [s for s in spans if s[1] > low and s[0] < high]


def test_a_name_may_hold_blanks_and_the_text_may_be_cut():
    maps = Maps(b"1000-2000 r--p 00000000 fe:01 9          /a b/c d\n2000-3000 r-xp 00001000 fe:01 9   /a b")
    assert [(m.name, m.rights) for m in maps.between(0, 1 << 64)] == [("/a b/c d", "r--p")]
    assert Maps(b"").at(5) is None


# -- chains --------------------------------------------------------------------


def xstate(features, in_use, size):
    area = bytearray(size)
    struct.pack_into("<Q", area, 464, features)
    struct.pack_into("<Q", area, 512, in_use)
    return bytes(area)


def chain_of(area, sp=0x7FFF_0000_8000):
    found = Registers(rsp=sp, rip=0x40_0002, orig_rax=7, rax=2**64 - 516, cs=0x33, ss=0x2B, rdi=5)
    return build([Call(9, (1, 2, 3, 4, 5, 6))], found, 0x55, area, 0x1000, 0x2000)


def test_a_chain_lies_below_the_red_zone_and_ends_where_the_thread_was():
    chain = chain_of(xstate(7, 7, 832))
    assert chain.base + len(chain.image) <= 0x7FFF_0000_8000 - 128
    assert chain.base % 16 == 8
    assert (chain.registers.rip, chain.registers.rsp) == (0x1001, chain.base + 8)
    last = chain.image[448 : 448 + 440]
    general = struct.unpack_from("<18Q", last, 48)
    assert general[8] == 5  # rdi
    assert general[13] == 7  # rax: the number again
    assert general[15:17] == (0x7FFF_0000_8000, 0x40_0000)
    assert struct.unpack_from("<Q", last, 304)[0] == 0x55
    fpstate = struct.unpack_from("<Q", last, 232)[0]
    assert fpstate % 64 == 0
    area = chain.image[fpstate - chain.base :]
    assert struct.unpack_from("<IIQI", area, 464) == (0x46505853, 836, 7, 832)
    assert area[832:] == struct.pack("<I", 0x46505845)


def test_a_thread_without_amx_gets_no_room_for_tiles_and_one_with_it_does():
    all_but_tiles = 0x602E7
    without = chain_of(xstate(all_but_tiles, 0x2E7, 11008)).image
    with_them = chain_of(xstate(all_but_tiles, all_but_tiles, 11008)).image
    assert struct.pack("<IIQI", 0x46505853, 2816 + 4, all_but_tiles, 2816) in without
    assert struct.pack("<IIQI", 0x46505853, 11008 + 4, all_but_tiles, 11008) in with_them


@pytest.mark.parametrize(
    "area", [bytes(512), xstate(0x602E7, 7, 11264)], ids=["no XSAVE", "something behind the tiles"]
)
def test_a_state_that_is_not_known_is_refused(area):
    with pytest.raises(UnknownState):
        chain_of(area)


# -- waits ---------------------------------------------------------------------


def test_a_wait_with_a_mask_of_its_own_is_known():
    arguments = (0, 0, 0, 0x7FFF_0000, 8, 0)
    assert Wait(1, 271, 271, arguments, 0, 0, 0.0).has_own_mask
    assert not Wait(1, 271, 271, (0,) * 6, 0, 0, 0.0).has_own_mask
    assert not Wait(1, 7, 7, arguments, 0, 0, 0.0).has_own_mask


def test_what_is_asked_says_how_much_longer_a_wait_may_become():
    assert LATER_S == LONGEST_LIMIT_S


def test_how_much_longer_a_wait_may_become(own_memory):
    limit = ctypes.create_string_buffer(struct.pack("<qq", 40, 0))
    at = ctypes.addressof(limit)
    assert _limit_s(7, (0, 0, 40_000, 0, 0, 0), own_memory) == 40  # poll
    assert _limit_s(35, (at, 0, 0, 0, 0, 0), own_memory) == 40  # nanosleep
    # The kernel writes back what is left, and that is what it is made again with.
    assert _limit_s(271, (0, 0, at, 0, 0, 0), own_memory) == 0  # ppoll
