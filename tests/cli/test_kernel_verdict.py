"""`gputop-llm verdict` with profiles of Nsight Compute: forms, exit codes, and what goes together."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from gputop_llm.cli import main
from tests.support.captures import CAPTURES
from tests.support.kernels import ALONE, DETAILS, FULL, GEMV, RAW, TINY

EAGER = CAPTURES / "h200/kineto_torch-eager-decode_cpu+cuda_0.5s.json.gz"
NATIVE = CAPTURES / "h200/native_vllm-0.24_named_0.5s.gtw.xz"
DOCUMENT = (CAPTURES.parent / "docs" / "kernel-verdict.md").read_text(encoding="utf-8")
VERDICT_DOCUMENT = (CAPTURES.parent / "docs" / "verdict.md").read_text(encoding="utf-8")
DEADLINE_S = 60


def verdict(capsys, *arguments):
    code = main(["verdict", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_profile_that_can_be_judged_exits_with_0_and_one_that_cannot_with_4(capsys):
    assert verdict(capsys, DETAILS)[0] == 0
    code, out, err = verdict(capsys, TINY)

    assert (code, err) == (4, "")
    assert out.startswith("can't judge: ")


@pytest.mark.parametrize("path", [ALONE, FULL, DETAILS, GEMV, TINY], ids=lambda path: path.name)
def test_no_line_of_the_text_is_wider_than_100_columns(capsys, path):
    assert max(map(len, verdict(capsys, path)[1].splitlines())) <= 100


@pytest.mark.parametrize("paths", [(FULL,), (GEMV,), (EAGER, RAW)], ids=["report", "csv", "beside a capture"])
def test_json_has_the_documented_names_and_no_nan(capsys, paths):
    out = verdict(capsys, *paths, "--json")[1]
    said = json.loads(out, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))

    assert said["schema"] == "gputop-llm/verdict/1"
    documented = DOCUMENT + VERDICT_DOCUMENT
    for table, rows in said["tables"].items():
        assert f"`{table}`" in documented
        if table in ("launches", "roofline", "what_if"):
            assert [column for column in rows[0] if f"`{column}`" not in DOCUMENT] == []
    assert [key for key in said["capture"] if f"`{key}`" not in documented] == []


def test_every_finding_is_documented():
    source = "".join(path.read_text(encoding="utf-8") for path in (CAPTURES.parent / "gputop_llm/ncu").rglob("*.py"))
    named = set(re.findall(r'id="([\w-]+)"', source)) | set(re.findall(r'"(kernel-[\w-]+)",\n', source))
    named |= {"kernel-dram-bound", "kernel-l2-bound", "kernel-l1-bound", "kernel-memory-bound"}

    assert len(named) > 15
    assert sorted(id for id in named if f"`{id}`" not in DOCUMENT) == []


def test_markdown_has_five_parts_for_each_finding(capsys):
    out = verdict(capsys, FULL, "--markdown")[1]
    count = len(re.findall(r"^## \d+\. ", out, re.MULTILINE))

    assert count >= 4
    for part in ("Symptom", "Evidence", "Conclusion", "Remedy", "How to verify"):
        assert out.count(f"**{part}.**") == count


def test_kernel_keeps_those_with_that_name_and_says_so_when_there_is_none(capsys):
    code, out, _ = verdict(capsys, RAW, "--kernel", "splitK", "--json")
    other = verdict(capsys, RAW, "--kernel", "flash_fwd")

    assert code == 0
    assert len(json.loads(out)["tables"]["launches"]) == 1
    assert other[0] == 4
    assert other[1].startswith("this isn't your hot kernel")


def test_several_profiles_are_one_list_of_launches(capsys):
    said = json.loads(verdict(capsys, ALONE, GEMV, "--json")[1])

    assert len(said["tables"]["launches"]) == 2
    assert len(said["capture"]["files"]) == 2


def test_beside_a_capture_the_order_of_the_files_is_no_matter(capsys):
    first = json.loads(verdict(capsys, EAGER, RAW, "--json")[1])
    second = json.loads(verdict(capsys, RAW, EAGER, "--json")[1])

    assert first["tables"]["what_if"] == second["tables"]["what_if"]
    assert first["headline"] == second["headline"]
    assert first["capture"]["files"] == [str(EAGER), str(RAW)]


def test_beside_a_bundle_its_hot_kernels_are_compared(capsys, tmp_path):
    record = tmp_path / "bundle" / "rank0_pid546.gtw.xz"
    record.parent.mkdir()
    record.write_bytes(NATIVE.read_bytes())
    said = json.loads(verdict(capsys, record.parent, ALONE, "--json")[1])
    ids = [finding["id"] for finding in said["findings"]]

    assert said["capture"]["format"] == "native"
    assert "what-if" in ids or "not-the-hot-kernel" in ids
    assert "kernel-warm-l2" in ids


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((RAW, RAW), "named twice"),
        ((RAW, "--perfetto", "out.json"), "no timeline"),
        ((EAGER, "--kernel", "x"), "no file of Nsight Compute"),
    ],
)
def test_what_does_not_go_together_is_wrong_usage(capsys, arguments, said):
    code, out, err = verdict(capsys, *arguments)

    assert (code, out) == (2, "")
    assert said in err


def test_the_command_loads_no_screen():
    code = (
        "import sys; from gputop_llm.cli import main; main(sys.argv[1:]); "
        "print(sorted({m.partition('.')[0] for m in sys.modules} & {'textual', 'rich', 'psutil', 'urllib3', 'pynvml'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "verdict", str(DETAILS)], capture_output=True, text=True, timeout=DEADLINE_S
    )

    assert done.stdout.splitlines()[-1] == "[]", done.stderr
