"""Cases 12, 16, 34: an engine that is restarted, two models on one page, and one that hangs with requests running."""

from __future__ import annotations

import pytest

from gputop_llm.config import Config


@pytest.fixture
def watched(machine):
    """`watched(12, 20)`: an engine whose page changes as the case says, for so many seconds."""

    def make(number: int, seconds: int, nvml: str | None = None, **given):
        one = machine(number, nvml=nvml, procs=None, **given)
        one.add_engine()
        return one.run_scrapes(seconds)

    return make


def lives(one):
    return [frame.engines[0].window.total for frame in one.frames]


async def test_12_no_rate_reaches_over_the_restart(watched):
    one = watched(12, 21)
    rates = [live.generation_tokens_per_s for live in lives(one)]
    assert (rates[0], rates[10], rates[20]) == (None, None, 1900)
    assert all(rate is None or 0 <= rate <= 1900 for rate in rates)
    assert all(live.requests_per_s is None or live.requests_per_s >= 0 for live in lives(one))
    assert [live.restarted for live in lives(one)] == [False] * 10 + [True] * 10 + [False]
    ttft = lives(one)[-1].latency["ttft"]
    assert (ttft.count, ttft.p95.low, ttft.p95.high) == (20, 0.25, 0.5)
    assert list(one.raised()) == ["warming-up"], "other rules are held back"
    assert one.raised()["warming-up"].headline.startswith("the engine is 10 s old: normal")


async def test_12_the_restart_is_told_where_the_figures_stand(watched):
    one = watched(12, 13)
    assert one.json()["engines"][0]["total"]["restarted"] is True
    assert "over the last 2.00 s (restarted)" in one.text()
    async with one.shown() as press:
        assert "restarted a moment ago" in "\n".join(await press("1"))


async def test_16_each_model_has_its_own_quantiles_and_the_slow_one_is_named(watched):
    # Its scrapes are 30 s apart.
    one = watched(16, 43, config=Config(window_s=30.0))
    models = {model["model"]: model["latency"]["ttft"] for model in one.json()["engines"][0]["models"]}
    assert models["org/small"]["p95"]["high_s"] <= 0.1
    assert [(models["org/large"][q]["low_s"], models["org/large"][q]["high_s"]) for q in ("p50", "p95")] == [
        (1.0, 2.5)
    ] * 2
    assert one.json()["engines"][0]["total"]["latency"] == {}, "both together would stand for neither"
    found = one.raised()["ttft-high"]
    assert found.subject.label == "vllm org/model-a, model org/large"
    assert [s.subject.label for s in one.report.active if "small" in s.subject.label] == []
    async with one.shown((120, 50)) as press:
        overview, engine = await press("1"), "\n".join(await press("3"))
    assert "2 models" in overview[0]
    assert "org/model-a" not in overview[0]
    rows = {line.split()[0]: line for line in overview if line.startswith("org/")}
    assert set(rows) == {"org/large", "org/small"}
    assert "org/large: TTFT p95 " in "\n".join(overview)
    assert "DP0" not in "\n".join(overview) + engine, "two models of one rank each are no ranks"
    assert "rank running waiting" not in one.text()


def test_16_load_and_throughput_are_by_model_and_in_sum(machine):
    one = machine(16, nvml=None, procs=None)
    one.add_engine()

    def each(second: int) -> None:
        page = ""
        for model, running, per_s in (("org/small", 3, 100), ("org/large", 4, 20)):
            labels = f'{{engine="0",model_name="{model}"}}'
            page += f"vllm:num_requests_running{labels} {running}\n"
            page += f"vllm:generation_tokens_total{labels} {per_s * second}\n"
        one.serve(page)

    (engine,) = one.run(5, each).json()["engines"]
    assert [(m["running"], m["generation_tokens_per_s"]) for m in engine["models"]] == [(4, 20), (3, 100)]
    assert (engine["total"]["running"], engine["total"]["generation_tokens_per_s"]) == (7, 120)


async def test_16_a_chosen_model_is_all_that_is_seen(watched):
    one = watched(16, 43, config=Config(window_s=30.0, model="org/small"))
    (engine,) = one.json()["engines"]
    assert engine["total"]["latency"]["ttft"]["p95"]["high_s"] <= 0.1
    assert "ttft-high" not in one.raised()
    assert "only org/small of 2 models on this page (--model)" in one.text()
    async with one.shown((120, 50)) as press:
        screens = "\n".join([*await press("1"), *await press("3")])
    assert "org/large" not in screens
    assert "org/small" in screens.splitlines()[0]


async def test_16_a_model_that_the_page_has_not_hides_nothing(watched):
    one = watched(16, 43, config=Config(window_s=30.0, model="org/smal"))
    told = "--model org/smal: not on this page, which has org/large, org/small; all is shown"
    assert told in one.text()
    async with one.shown((120, 50)) as press:
        assert told in "\n".join(await press("1")), "before a figure is taken for that model's"
        assert told in " ".join(" ".join(await press("3")).split())
    assert "ttft-high" in one.raised()


async def test_34_it_is_stalled_by_t3_and_all_else_follows_from_that(watched):
    one = watched(34, 16, "nvml.json")
    assert one.report.active[0].id == "stalled"
    one.run(6)
    first, *rest = one.report.active
    assert (first.id, first.root) == ("stalled", None)
    assert {s.id: s.root for s in rest} == {"kv-pressure": first.key, "queue-growing": first.key}
    assert first.headline == "no token for 16 s with 35 running: GPU 0 spins at 100 % on 220 of 700 W"
    assert all(engine.scrape.error is None for engine in one.frame.engines), "the page answers all the while"
    assert first.next_capture == "py-spy"
    assert "side by side" in first.advice[0].text
    lines = one.text()
    assert lines.index("CRITICAL stalled") < lines.index("WARNING kv-pressure") < lines.index("WARNING queue-growing")
    assert "since 15:13:35 UTC" in lines
    async with one.shown((120, 70)) as press:
        overview = "\n".join(await press("1"))
        page = " ".join(" ".join(await press("5", "enter")).split())
    assert "no token for 16 s with 35 running: GPU 0 spins at 100 % on 220 of 700 W" in overview
    assert "220 of 700 W" in page
    assert "side by side" in page
