"""Mangled kernel names read as in source, as other demanglers have them, and bounded whatever they say."""

from __future__ import annotations

import lzma
import sqlite3

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gputop_llm.timeline.demangle import demangled
from gputop_llm.timeline.demangle_reader import LONGEST
from gputop_llm.verdict.kernel_names import family_of, short_name
from tests.support.captures import CAPTURES

#: Expected as `c++filt` writes them.
WRITTEN = {
    "_Z7add_onePKfPfi": "add_one(float const*, float*, int)",
    "_Z3fooILi4EEvPf": "void foo<4>(float*)",
    "_Z3fooIJfiEEvDpT_": "void foo<float, int>(float, int)",
    "_Z3fooIJEEvDpT_": "void foo<>()",
    "_Z3fooIJfiEEvDpRKT_": "void foo<float, int>(float const&, int const&)",
    "_ZN12_GLOBAL__N_13barEv": "(anonymous namespace)::bar()",
    "_ZN3fooC1Ei": "foo::foo(int)",
    "_ZN3fooD2Ev": "foo::~foo()",
    "_ZNK3fooclEv": "foo::operator()() const",
    "_Z1fPFivE": "f(int (*)())",
    "_Z1fPA4_i": "f(int (*) [4])",
    "_Z1fM1XFviE": "f(void (X::*)(int))",
    "_Z1fILb1ELb0EEvv": "void f<true, false>()",
    "_Z1fILin5ELj3ELm7EEvv": "void f<-5, 3u, 7ul>()",
    "_Z1fSt6vectorIiSaIiEE": "f(std::vector<int, std::allocator<int> >)",
    "_Z1fIN3c108BFloat16EEvT_S1_S1_": "void f<c10::BFloat16>(c10::BFloat16, c10::BFloat16, c10::BFloat16)",
    "_ZZ4mainENKUlvE_clEv": "main::{lambda()#1}::operator()() const",
}


@pytest.mark.parametrize("mangled", WRITTEN)
def test_names_read_as_in_source(mangled):
    assert demangled(mangled) == WRITTEN[mangled]


def recorded_names():
    """(mangled, as NVIDIA demangles it) of every kernel in real exports."""
    found = set()
    for path in sorted(CAPTURES.rglob("*.sqlite.xz")):
        database = sqlite3.connect(":memory:")
        database.deserialize(lzma.decompress(path.read_bytes()))
        found |= set(
            database.execute(
                "SELECT DISTINCT m.value, d.value FROM CUPTI_ACTIVITY_KIND_KERNEL k"
                " JOIN StringIds m ON m.id = k.mangledName JOIN StringIds d ON d.id = k.demangledName"
            )
        )
    return sorted((mangled, told) for mangled, told in found if mangled.startswith("_Z"))


@pytest.mark.skipif(not hasattr(sqlite3.Connection, "deserialize"), reason="needs Python 3.11")
def test_kernels_of_real_captures_are_named_and_sorted_as_by_nvidias_demangler():
    names = recorded_names()

    assert len(names) > 50
    for mangled, told in names:
        assert short_name(demangled(mangled)) == short_name(told)
        assert family_of(demangled(mangled)) is family_of(told)


@pytest.mark.parametrize(
    "name",
    ["triton_poi_fused_add_0", "", "_Z", "_Zx", "_ZN", "_ZNE", "_ZC1", "kernel", "_Z3fo", "_ZN3fooEé", "_Z1fS9_"],
)
def test_what_is_no_mangled_name_stays_as_it_is(name):
    assert demangled(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "_Z1f" + "P" * 5000 + "i",
        "_Z1f" + "N1a" * 2000,
        "_Z1f" + "I" * 3000,
        "_Z1f" + "".join(f"1xI{'S_' * 20}E" for _ in range(300)),
        "_Z1fF" + "F" * 4000,
        "_Z1fIJ" + "i" * 3000 + "EEv" + "DpT_" * 300,
        "_Z1f1XIS_S_EIS0_S0_EIS1_S1_EIS2_S2_EIS3_S3_EIS4_S4_EIS5_S5_EIS6_S6_EIS7_S7_EIS8_S8_EIS9_S9_E",
    ],
    ids=["pointers", "names", "templates", "abbreviations", "functions", "packs", "doubling"],
)
def test_names_made_to_explode_stay_bounded(name):
    assert len(demangled(name)) <= max(LONGEST, len(name))


@settings(deadline=2000, max_examples=500)
@given(st.text("NESIJLXTDPRKFAMC_Zbifvl0123456789abcxyz", max_size=120))
def test_any_letters_end_in_a_name(letters):
    assert demangled("_Z" + letters)


@settings(deadline=2000, max_examples=300)
@given(st.data())
def test_damaged_names_end_in_a_name(data):
    name = list(data.draw(st.sampled_from(sorted(WRITTEN))))
    for _ in range(data.draw(st.integers(1, 4))):
        name[data.draw(st.integers(0, len(name) - 1))] = data.draw(st.sampled_from("NESIJLXTDPRKF_Zi0123456789"))
    assert demangled("".join(name))
