"""Cases 29 to 31: what ncu prints around, in and instead of its table, told by the program itself."""

from __future__ import annotations

import json

import pytest

from gputop_llm.cli import main
from gputop_llm.ncu.read import read_profile
from tests.support.captures import case_json, field_case


@pytest.fixture
def judged(capsys):
    """The verdict on a file: exit code, text and JSON."""

    def judge(path):
        said = []
        for how in ((), ("--json",)):
            code = main(["verdict", str(path), *how])
            said.append(capsys.readouterr().out)
        return code, said[0], json.loads(said[1])

    return judge


def test_29_two_kernels_come_out_of_a_pipe_full_of_other_lines(judged):
    path = field_case(29) / "stdout.log"
    code, _, verdict = judged(path)
    rows = verdict["tables"]["launches"]
    kernels = read_profile([path]).kernels

    assert code == 0
    assert [(row["memory_pct"], row["sm_pct"]) for row in rows] == [(57.12, 30.4), (81.0, 12.5)]
    assert [one.metrics["gpc__cycles_elapsed.max"] for one in kernels] == [23_023, 1_204_118]
    assert [one.name for one in kernels] == ["gemm_a", "void norm_b<float, 4>(T1 *, int)"]
    assert "void norm_b<float, 4>(T1 *, int)" in json.dumps(verdict)


def test_29_columns_are_found_by_name_and_a_row_of_units_is_no_kernel(judged):
    _, _, verdict = judged(field_case(29) / "raw-page.csv")
    (row,) = verdict["tables"]["launches"]

    assert (row["kernel"], row["median_us"]) == ("gemm_a", 12.51)
    assert (row["sm_pct"], row["memory_pct"]) == (None, None)


def test_30_a_missing_value_is_never_a_zero_and_gives_no_class(judged):
    code, text, verdict = judged(field_case(30) / "metrics.csv")
    (row,) = verdict["tables"]["launches"]
    (finding,) = verdict["findings"]

    assert code == 4
    assert (row["class"], row["sm_pct"], row["median_us"]) == ("can't tell", 41.2, 12.51)
    assert (row["memory_pct"], row["dram_pct"], row["l2_pct"]) == (None, None, None)
    for wrong in ("ompute-bound", "atency-bound", "below 60 %", "tensor pipe idle", " 0 %", "nan"):
        assert wrong not in text
    for metric in ("memory throughput", "DRAM throughput", "L2 hit rate", "tensor pipe"):
        assert metric in finding["cause"]
    for reason in ("doesn't exist on this chip", "was not asked for", "another profiler"):
        assert reason in finding["cause"]


LOGS = {
    "permission": (
        "GPU counters are restricted to administrators here", "as root or with CAP_SYS_ADMIN",
        "NVreg_RestrictProfilingToAdminUsers=0", "a container needs --cap-add=SYS_ADMIN at its start",
    ),
    "filter": ("name filter or the launch count let none through", "launched were: gemm_a, norm_b", "--kernel-name"),
    "child": ("launched by a child process", "--target-processes all"),
}  # fmt: skip


@pytest.mark.parametrize("name", LOGS)
def test_31_a_log_without_kernels_is_one_sentence_with_its_cause_and_way_out(capsys, name):
    assert set(case_json(31, "codes")) == set(LOGS)
    code = main(["verdict", str(field_case(31) / f"{name}.log")])
    out, err = capsys.readouterr()

    assert (code, out, err.count("\n")) == (1, "", 1)
    for words in LOGS[name]:
        assert words in err
    # What only follows from the cause is not told as one.
    assert ("no kernel matched" in err) == (name == "filter")
    assert "the program itself ran unharmed to its end" in err
