# ruff: noqa: E501 (the rows of a table)
"""Every recorded vLLM page is read to the exact values that it holds.

The tables were copied from the pages' own lines (by awk and by eye), not from what the program says.
"""

from __future__ import annotations

import math

import pytest

from tests.support.captures import VLLM_PAGES, read_page, scrape

# page, rank, running, waiting, KV share, prompt tokens, computed, cached, generated, preemptions, prefix queries,
# prefix hits, engine steps. None where the page does not say, or where several API servers count the same step.
# fmt: off
GAUGES_AND_COUNTERS = [
    ("0.17-gpu-qwen3-spec", "0", 1, 2, 0.0010077742585661298, 19045253, 13252037, 5793216, 6723875, 0, 19106864, 5819712, 2208376),
    ("0.24-h200-after", "0", 0, 0, 0, 846848, 662288, 184560, 423424, 0, 846848, 184560, 14396),
    ("0.24-h200-idle", "0", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
    ("0.24-h200-load", "0", 32, 0, 0.0041942154778201735, 377600, 208160, 169440, 185379, 0, 377600, 169440, 6354),
    ("0.8.5-v0-after", None, 8, 6, 0.975, 8827, None, None, 2918, 5, None, None, 394),
    ("0.8.5-v0-load", None, 6, 8, 0.76875, 1994, None, None, 694, 2, None, None, 91),
    ("cpu-0.10.2-v1-after", "0", 7, 7, 0.5974842767295597, 4493, None, None, 1641, 0, 4493, 2320, 206),
    ("cpu-0.10.2-v1-load", "0", 8, 6, 0.5408805031446541, 1994, None, None, 97, 0, 1994, 768, 13),
    ("cpu-0.32.0-after", "0", 0, 0, 0, 27581, 12605, 14976, 25100, 21, 27581, 14976, 3351),
    ("cpu-0.32.0-api2", "0", 0, 0, 0, 7471, 2479, 4992, 1189, 0, 7471, 4992, None),
    ("cpu-0.32.0-dp2", "0", 0, 0, 0, 5444, 1988, 3456, 895, 0, 5444, 3456, None),
    ("cpu-0.32.0-dp2", "1", 0, 0, 0, 2027, 875, 1152, 278, 0, 2027, 1152, None),
    ("cpu-0.32.0-idle", "0", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
    ("cpu-0.32.0-load-prev", "0", 7, 7, 0.9620253164556962, 8156, 3932, 4224, 6779, 8, 8156, 4224, 877),
    ("cpu-0.32.0-load", "0", 8, 6, 0.9240506329113924, 8849, 4241, 4608, 7222, 11, 8849, 4608, 941),
    ("cpu-0.32.0-lora", "0", 0, 0, 0, 7471, 2479, 4992, 1173, 0, 7471, 4992, 277),
    ("cpu-0.32.0-spec", "0", 0, 0, 0, 7471, 2479, 4992, 1189, 0, 7471, 4992, 290),
]

FINISHED = [
    ("0.17-gpu-qwen3-spec", "0", {"stop": 51319, "length": 724, "abort": 0, "error": 0, "repetition": 0}),
    ("0.24-h200-load", "0", {"stop": 0, "length": 1443, "abort": 0, "error": 0, "repetition": 0}),
    ("0.24-h200-after", "0", {"stop": 0, "length": 3308, "abort": 0, "error": 0, "repetition": 0}),
    ("0.8.5-v0-after", None, {"length": 19, "stop": 2}),
    ("0.8.5-v0-load", None, {}),
    ("cpu-0.10.2-v1-after", "0", {"stop": 3, "length": 9, "abort": 0}),
    ("cpu-0.10.2-v1-load", "0", {"stop": 0, "length": 0, "abort": 0}),
    ("cpu-0.32.0-after", "0", {"stop": 11, "length": 109, "abort": 0, "error": 0, "repetition": 0}),
    ("cpu-0.32.0-api2", "0", {"stop": 0, "length": 40, "abort": 0, "error": 0, "repetition": 0}),
    ("cpu-0.32.0-dp2", "0", {"stop": 1, "length": 29, "abort": 0, "error": 0, "repetition": 0}),
    ("cpu-0.32.0-dp2", "1", {"stop": 0, "length": 10, "abort": 0, "error": 0, "repetition": 0}),
    ("cpu-0.32.0-load-prev", "0", {"stop": 2, "length": 24, "abort": 0, "error": 0, "repetition": 0}),
    ("cpu-0.32.0-load", "0", {"stop": 2, "length": 27, "abort": 0, "error": 0, "repetition": 0}),
    ("cpu-0.32.0-lora", "0", {"stop": 1, "length": 39, "abort": 0, "error": 0, "repetition": 0}),
    ("cpu-0.32.0-spec", "0", {"stop": 0, "length": 40, "abort": 0, "error": 0, "repetition": 0}),
]

NAMES = ("ttft", "itl", "tpot", "queue", "prefill", "decode", "e2e", "request_prompt_tokens", "request_generation_tokens")
# page, rank, then count and sum of each histogram in NAMES; None where the page does not have it.
HISTOGRAMS = [
    ("0.17-gpu-qwen3-spec", "0", (52916, 3840882.9580595493), (2155457, 366813.3155220201), (52043, 2979.432286309289), (52043, 3560128.002164351), (52043, 14951.528692015272), (52043, 363558.4132051199), (52043, 3946161.6393609047), (52043, 18754362), (52043, 6636226)),
    ("0.24-h200-after", "0", (3308, 188.05624389648438), (420116, 1353.697743972948), (3308, 10.659037354118205), (3308, 0.2399059550016034), (3308, 95.50615107499738), (3308, 1353.6977439730024), (3308, 1547.2345225811005), (3308, 846848), (3308, 423424)),
    ("0.24-h200-idle", "0", (0, 0), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0)),
    ("0.24-h200-load", "0", (1475, 73.84584450721741), (183904, 504.0766655980474), (1443, 3.9527524635197016), (1443, 0.099315031999339), (1443, 35.42320719999918), (1443, 501.99956286700416), (1443, 576.8940718173981), (1443, 369408), (1443, 184704)),
    ("0.8.5-v0-after", None, (34, 1096.967001914978), (2884, 1131.9864571094513), None, (21, 509.5552644729614), (21, 35.07070541381836), (21, 869.3882510662079), (21, 1414.0142209529877), (21, 5045), (21, 2392)),
    ("0.8.5-v0-load", None, (8, 23.258662939071655), (686, 126.4759373664856), None, None, None, None, None, None, None),
    ("cpu-0.10.2-v1-after", "0", (19, 196.26190161705017), (1622, 204.8985211559998), None, (12, 56.083222707000004), (12, 13.626598072999741), (12, 187.0784398610001), (12, 268.4043068885803), (12, 3481), (12, 1180)),
    ("cpu-0.10.2-v1-load", "0", (8, 20.98682713508606), (89, 69.97200802700081), None, (0, 0), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0)),
    ("cpu-0.32.0-after", "0", (120, 406.9723274707794), (24980, 523.8763931710002), (120, 2.5186948474078683), (120, 378.2679131569994), (120, 13.91310177000048), (120, 523.8763931710002), (120, 930.8317651748657), (120, 27581), (120, 25100)),
    ("cpu-0.32.0-api2", "0", (40, 1.9645404815673828), (1149, 5.805482281999957), (40, 0.20384339025563802), (40, 0.0003673989999697369), (40, 0.7986127879999003), (40, 5.805482281999957), (40, 7.7488768100738525), (40, 7471), (40, 1189)),
    ("cpu-0.32.0-dp2", "0", (30, 1.5301918983459473), (865, 8.24205892300074), (30, 0.28720321865978715), (30, 0.00036737800064656767), (30, 0.8113760479993744), (30, 8.24205892300074), (30, 9.75387454032898), (30, 5444), (30, 895)),
    ("cpu-0.32.0-dp2", "1", (10, 3.0022215843200684), (268, 12.141699363000043), (10, 0.4146420630860548), (10, 0.00021846599929631338), (10, 2.3362359970005855), (10, 12.141699363000043), (10, 15.143909931182861), (10, 2027), (10, 278)),
    ("cpu-0.32.0-idle", "0", (0, 0), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0), (0, 0)),
    ("cpu-0.32.0-load-prev", "0", (34, 115.78490734100342), (6745, 153.16624616599995), (26, 0.601017221838991), (26, 73.90148662699949), (26, 4.824365661000456), (26, 126.44657140200002), (26, 211.16353011131287), (26, 6212), (26, 5533)),
    ("cpu-0.32.0-load", "0", (37, 131.01201605796814), (7185, 165.04022845800023), (29, 0.6645330146230317), (29, 83.57451034099961), (29, 5.2230387550004025), (29, 140.15030577400012), (29, 235.28026390075684), (29, 7294), (29, 6182)),
    ("cpu-0.32.0-lora", "0", (40, 5.873767614364624), (1133, 7.728704827000456), (40, 0.2774672800834787), (40, 0.0005287580024742056), (40, 3.9800426409974534), (40, 7.728704827000456), (40, 13.533756971359253), (40, 7471), (40, 1173)),
    ("cpu-0.32.0-spec", "0", (40, 9.293119192123413), (1142, 26.60945226000058), (40, 0.8797508848905917), (40, 0.00069614000153706), (40, 3.034141317998092), (40, 26.60945226000058), (40, 35.8668372631073), (40, 7471), (40, 1189)),
]
# fmt: on

# The page's own start time: when its counters began, else when its process did; None in a shared registry.
STARTED = {
    "0.17-gpu-qwen3-spec": 1780813856.1825402,
    "0.24-h200-after": 1795963847.0801966,
    "0.24-h200-idle": 1795963847.0801966,
    "0.24-h200-load": 1795963847.0801966,
    "0.8.5-v0-after": None,
    "0.8.5-v0-load": None,
    "0.8.5-v0-singleproc-idle": 1795962362.2,
    "cpu-0.10.2-v1-after": 1795962658.9613166,
    "cpu-0.10.2-v1-load": 1795962658.9613166,
    "cpu-0.32.0-after": 1795961810.9570434,
    "cpu-0.32.0-api2": None,
    "cpu-0.32.0-dp2": None,
    "cpu-0.32.0-idle": 1795961810.9570434,
    "cpu-0.32.0-load": 1795961810.9570434,
    "cpu-0.32.0-load-prev": 1795961810.9570434,
    "cpu-0.32.0-lora": 1795962115.8585374,
    "cpu-0.32.0-spec": 1795962084.327373,
}


def series(page: str, rank: str | None):
    reading = read_page(scrape(f"vllm-{page}"))
    (found,) = [one for one in reading.series if one.rank == rank]
    return found


def test_no_recorded_page_is_left_out_of_the_tables():
    pages = {path.stem.removeprefix("vllm-") for path in VLLM_PAGES}
    assert pages == set(STARTED)
    assert pages - {"0.8.5-v0-singleproc-idle"} == {row[0] for row in GAUGES_AND_COUNTERS}
    assert [row[:2] for row in GAUGES_AND_COUNTERS] == [row[:2] for row in HISTOGRAMS]


@pytest.mark.parametrize("row", GAUGES_AND_COUNTERS, ids=lambda row: f"{row[0]} {row[1]}")
def test_gauges_and_counters(row):
    page, rank, running, waiting, kv, prompt, computed, cached, generated, preemptions, queries, hits, steps = row
    one = series(page, rank)
    assert (one.running, one.waiting) == (running, waiting)
    assert one.kv_usage_pct == pytest.approx(100 * kv, rel=1e-12)
    scheduled = None if computed is None else computed + generated
    expected = {
        "prompt_tokens": prompt,
        "prompt_tokens_computed": computed,
        "prompt_tokens_cached": cached,
        "generation_tokens": generated,
        "preemptions": preemptions,
        "prefix_queries": queries,
        "prefix_hits": hits,
        "steps": steps,
        "scheduled_tokens": scheduled,
    }
    assert {name: one.counters.get(name) for name in expected} == expected
    others = {name for name in one.counters if not name.startswith(("finished:", "spec_"))}
    assert others == {name for name, value in expected.items() if value is not None}


@pytest.mark.parametrize("row", FINISHED, ids=lambda row: f"{row[0]} {row[1]}")
def test_finished_requests_by_reason(row):
    page, rank, finished = row
    counters = series(page, rank).counters
    assert {name[9:]: value for name, value in counters.items() if name.startswith("finished:")} == finished


@pytest.mark.parametrize("row", HISTOGRAMS, ids=lambda row: f"{row[0]} {row[1]}")
def test_histograms(row):
    page, rank, *expected = row
    one = series(page, rank)
    for name, pair in zip(NAMES, expected, strict=True):
        found = one.histograms.get(name)
        assert (None if found is None else (found.counts[-1], found.total)) == pair, name
        if found is not None:
            assert found.bounds[-1] == math.inf
            assert list(found.counts) == sorted(found.counts)
    assert set(one.histograms) <= set(NAMES)


def test_buckets_one_by_one():
    ttft = series("cpu-0.32.0-load", "0").histograms["ttft"]
    assert ttft.bounds == (
        *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5),
        *(10, 20, 40, 80, 160, 640, 2560, math.inf),
    )
    assert ttft.counts == (*[0] * 9, 1, 5, 8, 13, 28, *[37] * 9)


@pytest.mark.parametrize(("page", "started_s"), STARTED.items())
def test_when_the_counters_began(page, started_s):
    assert read_page(scrape(f"vllm-{page}")).started_s == started_s


def test_models_of_the_pages():
    models = {page: {one.model for one in read_page(scrape(f"vllm-{page}")).series} for page in STARTED}
    assert models.pop("0.17-gpu-qwen3-spec") == {"qwen3-30b-tq"}
    assert models.pop("0.8.5-v0-singleproc-idle") == set()
    assert {page: models.pop(page) for page in list(models) if "h200" in page} == {
        f"0.24-h200-{state}": {"/models/llama-1b"} for state in ("after", "idle", "load")
    }
    assert set().union(*models.values()) == {"tiny"}


@pytest.mark.parametrize("page", ["0.24-h200-load", "cpu-0.32.0-load", "cpu-0.32.0-load-prev"])
def test_waiting_by_reason_adds_up(page):
    one = series(page, "0")
    assert set(one.waiting_by_reason) == {"capacity", "deferred"}
    assert sum(one.waiting_by_reason.values()) == one.waiting


def test_speculative_decoding():
    counters = series("cpu-0.32.0-spec", "0").counters
    assert {name: value for name, value in counters.items() if name.startswith("spec_")} == {
        "spec_drafts": 130,
        "spec_draft_tokens": 371,
        "spec_accepted_tokens": 8,
        "spec_accepted_at:0": 4,
        "spec_accepted_at:1": 4,
        "spec_accepted_at:2": 0,
    }
    counters = series("0.17-gpu-qwen3-spec", "0").counters
    assert counters["spec_drafts"] == 2121962
    assert [counters[f"spec_accepted_at:{i}"] for i in range(8)] == [
        *(1142461, 813147, 570926, 501633, 433208, 410782, 372466, 330366)
    ]


@pytest.mark.parametrize("page", STARTED)
def test_no_page_has_a_line_that_cannot_be_read_nor_a_doubt(page):
    reading = read_page(scrape(f"vllm-{page}"))
    assert (reading.skipped_lines, reading.first_skipped, reading.problem) == (0, None, None)
    assert all(one.doubtful == () for one in reading.series)


@pytest.mark.parametrize(
    ("page", "config"),
    [
        ("0.24-h200-load", {"num_gpu_blocks": "137333", "block_size": "16", "kv_cache_size_tokens": "2197328"}),
        ("cpu-0.32.0-load", {"num_gpu_blocks": "80", "block_size": "32", "kv_cache_max_concurrency": "2.5"}),
        ("0.17-gpu-qwen3-spec", {"num_gpu_blocks": "6947", "block_size": "64", "cache_dtype": "turboquant_k3v4_nc"}),
        ("0.8.5-v0-load", {"num_gpu_blocks": "160", "block_size": "16", "enable_prefix_caching": "None"}),
    ],
)
def test_cache_config(page, config):
    found = read_page(scrape(f"vllm-{page}")).cache_config
    assert {name: found[name] for name in config} == config
    assert not {"engine", "model_name"} & set(found)


def test_sums_of_the_step_histogram_confirm_what_is_called_scheduled():
    """In 0.24 and 0.32 the step histogram's sum is computed + generated; in 0.17 and before it counts cached ones too."""
    for page, total in (("0.24-h200-load", 393539), ("cpu-0.32.0-load", 11463), ("cpu-0.32.0-after", 37705)):
        assert series(page, "0").counters["scheduled_tokens"] == total
    older = series("0.17-gpu-qwen3-spec", "0").counters
    assert older["scheduled_tokens"] == 25769128 - older["prompt_tokens_cached"]
