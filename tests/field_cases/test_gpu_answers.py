"""Cases 03, 05, 06: a vGPU guest, limits of power that are none, a driver that was updated under the engine."""

from __future__ import annotations

import sys

import pytest

from gputop_llm.cli import main
from gputop_llm.errors import ExitCode
from gputop_llm.report.outcome import Outcome
from tests.support.captures import case_json, case_page
from tests.support.fake_nvml import FakeNvml


@pytest.fixture
def guest(machine):
    one = machine(3, procs=None)
    one.add_engine(3100)
    one.serve(case_page(15))
    return one


async def test_03_what_answers_is_shown_and_the_rest_is_a_dash(guest):
    guest.run(12)
    assert guest.outcome() == Outcome(ExitCode.OK)
    (gpu,) = guest.json()["gpus"]
    assert (gpu["util_pct"], round(gpu["mem_used_pct"])) == (64.0, 84)
    assert (gpu["power_w"], gpu["temp_c"], gpu["energy_j"]) == (None, None, None)
    async with guest.shown() as press:
        overview = await press("1")
    lines = {line.split()[0]: line for line in overview if line}
    assert "64 %" in "\n".join(overview)
    assert lines["power"].split() == ["power", "–", "–"], "no chart, and no 0"
    assert "13.4 of 16.0 GiB" in lines["memory"]
    assert "▲" not in "\n".join(overview[: overview.index(lines["PCIe"]) + 1])


def test_03_rules_on_what_a_guest_is_not_told_say_so(guest):
    guest.run(12)
    for rule in ("power-capped", "thermal-throttled", "link-degraded", "gpu-fault"):
        assert guest.cannot_tell()[rule].startswith("vGPU guest"), rule
        assert rule not in guest.raised()


def test_03_no_call_that_is_not_supported_is_repeated_in_twelve_polls(guest):
    guest.run(12)
    assert set(guest.nvml.refused().values()) == {1}


async def test_05_watts_are_shown_and_the_share_of_no_limit_is_not(machine):
    one = machine(5, procs=None)
    one.add_engine()
    one.serve(case_page(15))
    one.run(3)
    shares = [[gpu.power_pct for gpu in frame.gpus.value.gpus] for frame in one.frames]
    assert shares == [[None, None, None], [None, None, pytest.approx(91.528)], [None, None, pytest.approx(91.528)]]
    text = one.text()
    for words in (" 2/– ", " 31/– ", " 229/250 ", "reports a limit of 0 W, which is none"):
        assert words in text
    async with one.shown() as press:
        shown = ["\n".join(await press(*keys)) for keys in (("1",), ("2",), ("right",), ("right",))]
    for screen in shown:
        assert not {"inf", "nan", "NaN"} & set(screen.split())
    rows = [line.split() for line in shown[0].splitlines() if line[:3].strip() in ("0", "1", "2")]
    assert [next(w for w in row[1:] if w != "–") for row in rows[:3]] == ["2", "31", "229"]


def test_05_rules_on_the_share_of_the_limit_cannot_tell(machine):
    one = machine(5, procs=None)
    for index in range(3):
        one.proc.add(100 + index, ["vllm", "serve", f"org/m{index}"], fds=[f"/dev/nvidia{index}"])
        one.nvml.set("UtilizationRates", {"gpu": 99, "memory": 2}, gpu=index)
    one.serve(case_page(15))
    lacking = {(c.id, c.subject.label): c.needs for c in one.run(12).report.cant_tell}
    for rule in ("power-capped", "gpu-busy-not-working"):
        for gpu in ("GPU 0", "GPU 1"):
            assert "power and its limit" in lacking[rule, gpu]
    assert "power and its limit" not in lacking.get(("power-capped", "GPU 2"), "")


@pytest.fixture
def mismatched(machine):
    """Case 06: the engine serves on while NVML can't be initialised."""
    one = machine(6, procs=None)
    one.add_engine()
    tokens = {at["t"]: at["vllm:generation_tokens_total"] for at in case_json(6, "generated_tokens")}

    def each(second):
        count = tokens.get(second, max(tokens.values()))
        one.serve(f'vllm:generation_tokens_total{{engine="0",model_name="org/model-a"}} {count}\n')

    return one.run(6, each)


WHY = (
    "driver 550.90.07 is loaded but library 550.107.02 is installed; a reboot or a reload of the kernel module fixes "
    "it; the running engine is not affected, but new CUDA processes on this machine will fail"
)


async def test_06_all_but_the_gpus_works_and_one_sentence_says_why(mismatched):
    assert mismatched.outcome() == Outcome(ExitCode.PARTIAL, (f"GPUs: {WHY}",))
    assert mismatched.json()["gpus"] is None
    assert mismatched.json()["engines"][0]["total"]["generation_tokens_per_s"] == pytest.approx(1900)
    assert mismatched.text().count("new CUDA processes on this machine will fail") == 1
    assert mismatched.nvml.calls["nvmlInit"] == 1, "not tried again each second"
    assert mismatched.report.judged > 0
    async with mismatched.shown() as press:
        assert WHY in " ".join(" ".join(await press("2")).split())
    for size in ((80, 24), (120, 40)):
        async with mismatched.shown(size) as press:
            assert WHY in " ".join(" ".join(await press("1")).split())


@pytest.mark.parametrize("init", [{"error": 18}, None])
def test_06_a_launch_under_nsys_is_refused_beforehand_with_that_reason_only(init, monkeypatch, capsys):
    lib = FakeNvml.from_case("06")
    lib.system["init"] = init
    monkeypatch.setitem(sys.modules, "pynvml", lib)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("gputop_llm.commands.run_nsys.find_nsys", list)
    code = main(["run", "--nsys", "--", "vllm", "serve"])
    said = capsys.readouterr().err
    assert code != 0
    assert said.count("\n") == 1
    assert ("new CUDA processes on this machine will fail" in said) == (init is not None)
    assert ("no nsys" in said) == (init is None)
