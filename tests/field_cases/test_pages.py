"""Cases 10, 11, 13–15, 17–20: a CPU quota, and pages that are odd in one way each."""

from __future__ import annotations

import re

import pytest

from gputop_llm.commands.doctor import remarks_on
from gputop_llm.errors import ExitCode
from tests.support.captures import case_json, case_page
from tests.support.fake_proc import BOOT_S


@pytest.fixture
def serving(machine):
    """`serving(19)` watches an engine with the case's page for some seconds, on a machine without a GPU."""

    def make(number: int, name: str = "metrics", seconds: int = 4, argv: list[str] | None = None):
        one = machine(number, nvml=None, procs=None)
        one.add_engine(**({"cmdline": argv} if argv else {}))
        one.serve(case_page(number, name))
        return one.run(seconds)

    return make


def total(one):
    return one.json()["engines"][0]["total"]


# -- 10: the container may use 4 CPUs and is throttled ---------------------------------


def test_10_the_window_counts_and_not_the_engines_life(machine):
    one = machine(10, nvml=None, procs=None)
    one.proc.add(100, ["vllm", "serve", "org/model-a"], cgroup="0::/engine.slice")
    cores = "".join(f"cpu{core} 0 0 0 0 0 0 0 0 0 0\n" for core in range(8))
    one.proc.write("stat", f"cpu  0 0 0 0 0 0 0 0 0 0\n{cores}btime {BOOT_S}\n")
    one.proc.write("self/mountinfo", "30 28 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    group = one.cgroups / "engine.slice"
    group.mkdir(parents=True)
    (one.cgroups / "cgroup.controllers").write_text("cpu\n")
    (group / "cpu.max").write_text((one.case / "v2_cpu.max.txt").read_text())
    first, last = (
        {name: int(value) for name, value in (line.split() for line in (one.case / file).read_text().splitlines())}
        for file in ("v2_cpu.stat_t0.txt", "v2_cpu.stat_t1.txt")
    )

    def each(second: int) -> None:
        share = min(second, 30) / 30
        now = {name: int(value + share * (last[name] - value)) for name, value in first.items()}
        (group / "cpu.stat").write_text("".join(f"{name} {value}\n" for name, value in now.items()))

    one.serve(case_page(15))
    one.run(31, each)
    (process,) = one.json()["host"]["processes"]
    assert (process["cgroup"]["quota_cpus"], process["cgroup"]["used_cpus"]) == (4.0, pytest.approx(4.0, abs=0.01))
    assert process["cgroup"]["throttled_s_per_s"] == pytest.approx(41.2 / 30, rel=0.01)
    found = one.raised()["cpu-throttled"]
    assert found.headline == "CPU quota of 4 cores stops the engine in 68 % of all periods"
    assert one.report.active[0] is found
    assert "CPU quota 4, uses 4 CPUs" in one.text()


# -- 11: -nan, NaN and Inf ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "argv", "running"), [("llamacpp", ["llama-server", "-m", "/m.gguf", "--metrics"], 0), ("vllm", None, 3)]
)
async def test_11_what_is_no_number_is_missing_and_the_rest_is_right(serving, name, argv, running):
    one = serving(11, name, 12, argv)
    engine = one.json()["engines"][0]
    assert (engine["total"]["running"], engine["reading"]["skipped_lines"]) == (running, 0)
    assert engine["total"]["waiting"] == (0 if name == "llamacpp" else None)
    async with one.shown() as press:
        words = set("\n".join(await press("1") + await press("3")).split())
    assert not {"nan", "NaN", "-nan", "inf", "+Inf"} & (words | set(one.text().split()))


def test_11_a_gauge_that_turns_nan_neither_raises_nor_clears(serving):
    one = serving(34, "t0", 12)
    before = set(one.raised())
    assert "kv-pressure" in before
    one.serve(case_page(34, "t0").replace('a"} 0.99', 'a"} NaN').replace('a"} 115.0', 'a"} NaN'))
    frame = one.run(20).json()["engines"][0]["total"]
    assert (frame["kv_usage_pct"], frame["waiting"], frame["running"]) == (None, None, 35)
    assert frame["missing"]["waiting"] == "the page gives no number for it (NaN or Inf)"
    assert one.cannot_tell()["kv-pressure"] == "KV cache usage (the page gives no number for it (NaN or Inf))"


# -- 13: process metrics only -------------------------------------------------------------


async def test_13_the_engine_is_found_and_its_metrics_are_missing(machine):
    one = machine(13, nvml=None)
    one.serve(case_page(13))
    one.run(15)
    assert one.json()["engines"][0]["total"]["running"] is None
    assert (one.frame.focused.engine, one.frame.focused.model) == ("vllm", "org/model-a")
    async with one.shown() as press:
        overview, processes = " ".join(" ".join(await press("1")).split()), "\n".join(await press("4"))
    for screen in (overview, one.text()):
        for words in ("process metrics but none of an engine", "--disable-log-stats", "PROMETHEUS_MULTIPROC_DIR"):
            assert words in screen
    assert "running – · waiting –" in overview
    assert "--disable-log-stats" in processes
    assert not {"underloaded", "stalled", "metrics-stale"} & set(one.raised())
    assert one.outcome().code == ExitCode.PARTIAL


# -- 14: markup in names -------------------------------------------------------------------


async def test_14_every_name_is_shown_literally_in_text_json_and_on_screen(machine):
    one = machine(14, nvml=None)
    one.serve(case_page(14))
    one.run(3)
    names = case_json(14, "names")
    assert sorted(m["model"] for m in one.json()["engines"][0]["models"]) == sorted(names)
    async with one.shown((200, 60)) as press:
        engine, processes = "\n".join(await press("3")), "\n".join(await press("4"))
        header = (await press("1"))[0]
    assert all(name in engine for name in names)
    assert all(f"model {name} " in one.text() for name in names)
    assert "vllm serve [/mnt/models/llama-3] --served-model-name org/m[/]" in processes
    assert "8 models" in header


# -- 15: two engines, old and new name of a gauge ----------------------------------------------


async def test_15_the_worst_and_the_sums(serving):
    one = serving(15)
    engine = one.json()["engines"][0]
    assert [rank["kv_usage_pct"] for rank in engine["ranks"]] == pytest.approx([40, 44])
    assert (engine["total"]["kv_usage_pct"], engine["total"]["running"], engine["total"]["waiting"]) == (
        pytest.approx(44), 22, 1,
    )  # fmt: skip
    async with one.shown() as press:
        screen = "\n".join(await press("1"))
    assert "running 22 · waiting 1 · KV 44 %" in screen
    assert [line.split()[0] for line in screen.splitlines() if line.startswith("DP")] == ["DP0", "DP1"]


# -- 17: LoRA state ---------------------------------------------------------------------------


async def test_17_the_newest_state_is_shown_and_the_time_is_no_count(serving):
    one = serving(17)
    engine = one.json()["engines"][0]
    assert engine["reading"]["lora"] == {"running": ["sql-lora", 'chat/tr"x'], "waiting": [], "max_adapters": 4}
    assert (len(engine["models"]), engine["total"]["running"]) == (1, 5)
    async with one.shown((120, 60)) as press:
        screen = "\n".join(await press("3"))
    assert 'sql-lora, chat/tr"x' in screen
    assert 'LoRA adapters: running sql-lora, chat/tr"x; waiting none; at most 4' in one.text()
    assert "old-one" not in screen
    assert "unloaded" not in screen
    for time_of_change in ("1.79596", "179596"):
        assert time_of_change not in screen + one.text()


# -- 18: OpenMetrics ---------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["openmetrics", "classic_created"])
async def test_18_both_forms_give_the_same(machine, form):
    one = machine(18, nvml=None, procs=None)
    one.clock.now = 1795964000.0 - BOOT_S
    one.add_engine(started_s=1795963840.0 - BOOT_S)
    page = case_page(18, form)
    one.serve(page)
    one.run(2)
    # Ten more requests, each of which had its first token late.
    one.serve(re.sub(r"^(.*(?:_total|_count|\+Inf).*}) 120", r"\1 130", page, flags=re.MULTILINE))
    one.run(2)
    figures = total(one)
    assert figures["requests_per_s"] == pytest.approx(10 / 3)
    assert (figures["latency"]["ttft"]["count"], figures["latency"]["ttft"]["p95"]["low_s"]) == (10, 0.5)
    assert set(figures["latency"]) == {"ttft"}, "_created is no metric of its own"
    assert one.json()["engines"][0]["reading"]["skipped_lines"] == 0
    async with one.shown() as press:
        screen = "\n".join(await press("3"))
    assert "2 m 35 s ago" in screen


async def test_18_a_clock_that_is_ahead_of_ours_makes_no_young_engine(serving):
    one = serving(18, "openmetrics", 15)
    assert "warming-up" not in one.raised()
    async with one.shown() as press:
        assert "ahead of this machine's clock" in "\n".join(await press("3"))


# -- 19: lines that can't be read ------------------------------------------------------------------


async def test_19_good_lines_are_used_and_the_others_counted_and_named(serving):
    one = serving(19)
    reading = one.json()["engines"][0]["reading"]
    assert (total(one)["running"], total(one)["waiting"], reading["skipped_lines"]) == (7, 2, 2)
    assert one.frame.engines[0].scrape.error is None
    said = (
        '2 lines of the page could not be read, the first: gateway_key_days{name="Laptop 14" registry",id="218"} -794'
    )
    assert one.text().count(said) == 1
    assert [remark.endswith(said) for remark in remarks_on(one.frame)] == [False, True], "the missing driver, and this"
    async with one.shown() as press:
        assert said in " ".join(await press("3"))
    assert not [note for note in one.frame.notes if "could not be read" in note]


def test_19_control_bytes_of_a_bad_line_are_made_visible(serving):
    one = serving(19)
    one.serve("broken{a=\x1b[31m\x07} x\n" + case_page(19))
    assert "broken{a=\\x1b[31m\\x07} x" in one.run(2).json()["engines"][0]["reading"]["first_skipped"]
    assert one.text().isprintable()


# -- 20: the same series twice -----------------------------------------------------------------------


async def test_20_two_values_are_neither_added_nor_shown_as_sure(serving):
    assert (total(serving(20, "same"))["running"], total(serving(20, "same"))["doubtful"]) == (12, [])
    one = serving(20, "differ")
    assert (total(one)["running"], total(one)["doubtful"]) == (12, ["running", "generation_tokens_per_s"])
    assert "the endpoint gives two values for one series" in one.text()
    async with one.shown() as press:
        overview, engine = "\n".join(await press("1")), "\n".join(await press("3"))
    assert "running 12? ·" in overview
    assert "12?" in engine


def test_20_a_rate_does_not_jump_with_the_order_of_the_lines(serving):
    one = serving(20, "differ", 1)
    one.run(6, lambda second: one.serve(case_page(20, "differ" if second % 2 else "differ-reordered")))
    rates = [frame.engines[0].window.total.generation_tokens_per_s for frame in one.frames[1:]]
    assert rates == [0.0] * 6
    assert not any(frame.engines[0].window.total.restarted for frame in one.frames)
