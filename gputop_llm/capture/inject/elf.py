"""The functions that a library exports, looked up in the memory of the process that has it loaded.

Its file may be of another container, or be replaced by now. All of it was written by the target: every size is bounded,
and what makes no sense is "not found".
"""

from __future__ import annotations

import struct
from contextlib import suppress

from gputop_llm.capture.inject.memory import Memory

_EHDR = struct.Struct("<4sB11xHHIQQQIHHHHHH")
_PHDR = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_STRTAB, _DT_SYMTAB, _DT_VERSYM, _DT_GNU_HASH = 5, 6, 0x6FFFFFF0, 0x6FFFFEF5
_X86_64, _CLASS_64 = 62, 2
_FUNCTION = 2  # STT_FUNC; an IFUNC's address is not the function's
_HIDDEN = 0x8000  # of a version: not the one that a new program gets
_ADDRESSES = (1 << 64) - 1
_MOST_HEADERS, _MOST_DYNAMIC, _MOST_CHAIN = 64, 512, 4096


class Library:
    """One loaded library.

    Args:
        memory: of the process.
        base: where its first page (the ELF header) is mapped.

    Raises:
        ValueError: no x86-64 library is there.
        OSError: nothing is mapped there.
    """

    def __init__(self, memory: Memory, base: int) -> None:
        self._memory, self.base = memory, base
        header = _EHDR.unpack(self._bytes(base, _EHDR.size))
        if header[0] != b"\x7fELF" or header[1] != _CLASS_64 or header[3] != _X86_64:
            raise ValueError("not an x86-64 library")
        offset, entry_bytes, count = header[6], header[10], header[11]
        if entry_bytes != _PHDR.size or not 0 < count <= _MOST_HEADERS:
            raise ValueError("odd program headers")
        self._headers = list(_PHDR.iter_unpack(self._bytes(base + offset, count * entry_bytes)))
        self._tables = self._dynamic()

    def code(self) -> list[tuple[int, int]]:
        """Where its executable segments are: (address, bytes)."""
        return [
            (self.base + address, memory_bytes)
            for kind, flags, _, address, _, _, memory_bytes, _ in self._headers
            if kind == _PT_LOAD and flags & 1
        ]

    def function(self, name: bytes) -> int | None:
        """The address of an exported function; None where there is none of this name."""
        with suppress(OSError, ValueError, struct.error, KeyError):
            return self._lookup(name)
        return None

    def _bytes(self, address: int, count: int) -> bytes:
        data = self._memory.read(address, count)
        if len(data) != count:
            raise ValueError("cut short")
        return data

    def _dynamic(self) -> dict[int, int]:
        tables: dict[int, int] = {}
        for kind, _, _, address, _, _, memory_bytes, _ in self._headers:
            if kind == _PT_DYNAMIC:
                count = min(memory_bytes // 16, _MOST_DYNAMIC)
                for tag, value in struct.iter_unpack("<QQ", self._bytes(self.base + address, count * 16)):
                    if tag == 0:
                        break
                    # The loader has made addresses of most; where it has not, they count from the base.
                    tables[tag] = value if value >= self.base else self.base + value
        return tables

    def _lookup(self, name: bytes) -> int | None:
        table = self._tables[_DT_GNU_HASH]
        buckets, first, bloom_words, _ = struct.unpack("<IIII", self._bytes(table, 16))
        if not buckets:
            return None
        bucket_table = table + 16 + bloom_words * 8
        chain = bucket_table + buckets * 4
        hashed = _gnu_hash(name)
        index = self._word(bucket_table + hashed % buckets * 4)
        hidden = None
        for i in range(index, index + _MOST_CHAIN):
            if i < first:
                break
            entry = self._word(chain + (i - first) * 4)
            if entry | 1 == hashed | 1 and (address := self._address(i, name)):
                if not self._is_hidden(i):
                    return address
                hidden = address
            if entry & 1:
                break
        return hidden

    def _word(self, address: int) -> int:
        return int.from_bytes(self._bytes(address, 4), "little")

    def _address(self, index: int, name: bytes) -> int | None:
        symbol = self._bytes(self._tables[_DT_SYMTAB] + index * _SYMBOL.size, _SYMBOL.size)
        name_offset, info, _, section, value, _ = _SYMBOL.unpack(symbol)
        if info & 15 != _FUNCTION or section == 0:
            return None
        if self._bytes(self._tables[_DT_STRTAB] + name_offset, len(name) + 1) != name + b"\0":
            return None
        # A tool that traces the process may have put a function of its own there (nsys does), below the library: what
        # everybody else in there calls is what we call.
        return (self.base + int(value)) & _ADDRESSES

    def _is_hidden(self, index: int) -> bool:
        versions = self._tables.get(_DT_VERSYM)
        return versions is not None and bool(self._word(versions + index * 2) & _HIDDEN)


def _gnu_hash(name: bytes) -> int:
    value = 5381
    for byte in name:
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value
