"""What `ncu --csv` has printed over the years, and what pipes and shells make of it."""

from __future__ import annotations

import pytest

from gputop_llm.ncu.csv_text import read_text
from gputop_llm.ncu.quantity import base, number
from gputop_llm.ncu.read import is_profile, read_profile

HEAD = '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream"'
ROW = '"0","77","python3","127.0.0.1","k","1","7"'


@pytest.mark.parametrize(
    ("text", "value"),
    [("23,023", 23023.0), ("1,204,118", 1204118.0), ("12.51", 12.51), ("1e-3", 0.001), ("-4", -4.0), ("0", 0.0)],
)
def test_numbers_are_read_as_ncu_writes_them(text, value):
    assert number(text) == value


@pytest.mark.parametrize("text", ["", "n/a", "nan", "(!) nan", "(!) 12.5", "inf", "1,2", "PolicySpread", "."])
def test_what_is_no_number_is_none(text):
    assert number(text) is None


@pytest.mark.parametrize(
    ("unit", "factor", "plain"),
    [
        ("usecond", 1e3, "ns"), ("us", 1e3, "ns"), ("nsecond", 1, "ns"), ("msecond", 1e6, "ns"), ("second", 1e9, "ns"),
        ("Gbyte/s", 1e9, "byte/s"), ("Tbyte/s", 1e12, "byte/s"), ("byte/second", 1, "byte/s"),
        ("Gbyte/second", 1e9, "byte/s"), ("Mbyte", 1e6, "byte"), ("Kbyte/block", 1e3, "byte/block"),
        ("Ghz", 1e9, "hz"), ("cycle/nsecond", 1e9, "hz"), ("%", 1, "%"), ("", 1, ""), ("sector/ns", 1e9, "sector/s"),
        ("register/thread", 1, "register/thread"),
    ],
)  # fmt: skip
def test_units_are_scaled_to_base_ones(unit, factor, plain):
    scaled, name = base(unit)

    assert (scaled, name) == (pytest.approx(factor), plain)


def details(
    *rows, head='"Section Name","Metric Name","Metric Unit","Metric Value"', launch='"(256, 1, 1)","(8, 1, 1)"'
):
    lines = [f'{HEAD},"Block Size","Grid Size",{head}']
    return "\n".join([*lines, *(f"{ROW},{launch},{row}" for row in rows)])


SOL = "GPU Speed Of Light Throughput"


@pytest.mark.parametrize(
    "rows",
    [
        (f'"{SOL}","Memory Throughput","%","57.1"', f'"{SOL}","Compute (SM) Throughput","%","8.9"',
         f'"{SOL}","Duration","us","12.5"'),
        (f'"{SOL}","Memory Throughput","%","57.1"', f'"{SOL}","Compute (SM) Throughput","%","8.9"',
         f'"{SOL}","Duration","nsecond","12,500"'),
        ('"GPU Speed Of Light","Memory [%]","%","57.1"', '"GPU Speed Of Light","SM [%]","%","8.9"',
         '"GPU Speed Of Light","Duration","usecond","12.50"'),
        ('"GPU Speed Of Light","SOL Memory","%","57.1"', '"GPU Speed Of Light","SOL SM","%","8.9"',
         '"GPU Speed Of Light","Duration","usecond","12.50"'),
        ('"Command line profiler metrics",'
         '"gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed","%","57.1"',
         '"Command line profiler metrics","sm__throughput.avg.pct_of_peak_sustained_elapsed","%","8.9"',
         '"Command line profiler metrics","gpu__time_duration.sum","us","12.5"'),
    ],
    ids=["2025", "2022, base units", "2021", "2020", "metrics by name"],
)  # fmt: skip
def test_the_details_page_of_every_year_gives_the_same(rows):
    (kernel,) = read_text(details(*rows))

    assert (kernel.memory_pct, kernel.sm_pct, kernel.duration_ns) == (57.1, 8.9, pytest.approx(12500))


def test_two_memory_throughputs_are_told_apart_by_their_unit():
    (kernel,) = read_text(
        details(
            f'"{SOL}","Memory Throughput","%","57.1"',
            f'"{SOL}","Duration","us","10"',
            '"Memory Workload Analysis","Memory Throughput","Tbyte/s","2.0"',
        )
    )

    assert kernel.memory_pct == 57.1
    assert kernel.dram_bytes == pytest.approx(20e6)


def test_a_missing_memory_throughput_without_a_unit_stays_that_of_its_section():
    (kernel,) = read_text(details(f'"{SOL}","Memory Throughput","","n/a"', f'"{SOL}","DRAM Throughput","%","12"'))

    assert kernel.memory_pct is None
    assert kernel.missing == {"gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"}


def test_columns_are_found_by_name_wherever_they_stand():
    text = (
        '"ID","Kernel Name","Metric Value","Metric Unit","Metric Name","thread Domain:Push/Pop_Range","Process ID"\n'
        '"3","k","12.5","us","Duration","","9"\n'
    )
    (kernel,) = read_text(text)

    assert (kernel.number, kernel.name, kernel.duration_ns, kernel.grid) == (3, "k", 12500, None)


def test_rules_have_a_title_by_their_wording_and_their_estimate():
    head = (
        '"Section Name","Metric Name","Metric Unit","Metric Value","Rule Name","Rule Type","Rule Description",'
        '"Estimated Speedup Type","Estimated Speedup"'
    )
    small = "This kernel grid is too small to fill the available resources, resulting in only 0.4 full waves"
    (kernel,) = read_text(
        details(
            f'"{SOL}","Duration","us","3"',
            f'"SpeedOfLight","","","","SOLBottleneck","OPT","{small}","",""',
            '"LaunchStats","","","","LaunchConfiguration","OPT","x","global","27.27"',
            '"LaunchStats","","","","CPIStall","INF","x","local","5"',
            head=head,
        )
    )
    named, estimated, told = kernel.rules

    assert (named.title, named.advises, named.speedup_pct) == ("Small Grid", True, None)
    assert (estimated.speedup_pct, estimated.whole_kernel) == (27.27, True)
    assert (told.advises, told.whole_kernel) == (False, False)


def test_one_id_in_two_processes_is_two_launches():
    text = details(f'"{SOL}","Duration","us","3"')
    other = text.splitlines()[1].replace('"77"', '"78"')

    assert len(read_text(f"{text}\n{other}")) == 2


def test_two_tables_after_one_another_are_both_read():
    one = details(f'"{SOL}","Duration","us","3"')

    assert len(read_text(one + "\n==PROF== Disconnected\n" + one.replace('"0","77"', '"1","77"'))) == 2


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_what_shells_make_of_the_text_is_read(tmp_path, encoding, end):
    path = tmp_path / "out.csv"
    path.write_bytes(details(f'"{SOL}","Duration","us","3"').replace("\n", end).encode(encoding))

    assert is_profile(path)
    assert read_profile([path]).kernels[0].duration_ns == 3000


def test_program_output_that_looks_like_rows_is_none():
    text = '"0","1"\n1,2,3\n"ID","x"\n' + details(f'"{SOL}","Duration","us","3"') + '\n"9","step","loss, 0.5"\n7,8\n'

    assert len(read_text(text)) == 1
