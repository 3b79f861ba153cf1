"""The text of a snapshot: complete, honest about bounds, at most 100 columns, safe to paste anywhere."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputop_llm.model import (
    EngineLive,
    EngineWindow,
    Gpu,
    GpuNode,
    Host,
    Part,
    ProcessLoad,
    Quantile,
    Target,
    TargetList,
    ThrottleReason,
)
from gputop_llm.model.limits import EngineLimits, LimitEstimate
from gputop_llm.report.text import WIDTH, frame_text
from gputop_llm.report.text_engine import quantile_text
from tests.support import frames

LOADED = frames.one_gpu_loaded()
ALL = [
    LOADED,
    frames.tp2(),
    frames.eight_gpus(),
    frames.everything_on(),
    frames.gpu_without_engine(),
    frames.no_gpu(),
    frames.nothing_known(),
    frames.unreachable(),
    frames.several_candidates(),
    frames.markup_in_names(),
    frames.logged(),
    replace(LOADED, gpus=Part(), host=Part(), targets=Part(), engines=()),
]


def text(frame, ascii_only: bool = False) -> str:
    return frame_text(frame, "gpu-node-7", ascii_only)


def words(frame) -> str:
    """On one line, so that it doesn't matter where lines were broken."""
    return " ".join(text(frame).split())


@pytest.mark.parametrize("frame", ALL)
@pytest.mark.parametrize("ascii_only", [False, True])
def test_no_line_is_longer_than_100_columns_or_ends_in_blanks(frame, ascii_only):
    for line in text(frame, ascii_only).splitlines():
        assert len(line) <= WIDTH
        assert line == line.rstrip()


@pytest.mark.parametrize("frame", ALL)
def test_ascii_is_ascii(frame):
    assert text(frame, ascii_only=True).isascii()
    assert "≤" in text(LOADED)
    assert "<= 10 ms" in text(LOADED, ascii_only=True)


@pytest.mark.parametrize("frame", ALL)
def test_nothing_but_printable_characters_and_line_ends_is_written(frame):
    assert text(frame).replace("\n", "").isprintable()


def test_the_first_line_says_where_and_when():
    assert re.match(r"gputop-llm \d+\.\d+\.\d+ · gpu-node-7 · 2026-11-29 16:08:46 UTC\n", text(LOADED))


def test_a_simulated_node_says_so_before_anything_else():
    assert text(replace(LOADED, simulated="healthy, seed 7")).splitlines()[1] == (
        "SIMULATED, no real node: healthy, seed 7"
    )


def test_the_engine_is_named_with_its_pids_gpus_and_address():
    said = words(LOADED)
    assert "vllm 0.24.0 · /models/llama-1b · PID 600 · GPU 0 · up 12 m 04 s · user svc-llm" in said
    assert "metrics http://127.0.0.1:8000/metrics (from argv)" in said
    assert "624 engine-core 0 71.1 GiB R" in said


def test_gpus_by_inference_are_called_so():
    assert "640 worker TP0 0 (inferred) – R" in words(frames.tp2())


def test_each_gpu_is_a_row_with_what_it_does_beside_what_it_is_called_to_do():
    assert "0 40 % 21 % 3 % 3 % 15 % 71.1/140.4 51 % 246/700 41 C 1980/1980" in words(LOADED)


def test_trouble_of_a_gpu_is_in_words():
    said = words(frames.eight_gpus())
    for part in (
        "GPU 5: clock limits in force: sw power cap 62 % of the time",
        "REDUCED from x16",
        "14 replays",
        "2 uncorrected ECC errors",
        "row remap pending: reset needed",
        "Xid 63",
        "NVLink sends 212 GiB/s",
    ):
        assert part in said


@pytest.mark.parametrize("name", ["idle", "app_clocks"])
def test_clocks_of_a_gpu_at_rest_or_set_by_somebody_are_no_trouble(name):
    held = replace(frames.h200(), throttle=(ThrottleReason(name, active=True, share_pct=None, source="bit"),))
    assert "clock limits" not in text(frames.frame(frames.node([held])))


def test_a_gpm_figure_that_fails_alone_has_its_reason():
    gpu = frames.h200()
    gpu = replace(gpu, gpm=replace(gpu.gpm, tensor_pct=None), missing={"gpm.tensor_pct": "no data yet"})
    assert "GPU 0: unknown gpm.tensor_pct: no data yet" in words(frames.frame(frames.node([gpu])))


def test_what_the_host_does_not_tell_is_named_with_its_reason_and_process():
    host = Host(
        missing={"load_1m": "/proc/loadavg does not tell it"},
        processes=(ProcessLoad(pid=7, role="worker", missing=dict.fromkeys(("threads", "state"), "needs root")),),
    )
    said = words(replace(frames.one_gpu_loaded(), host=Part(value=host)))
    assert "unknown load_1m: /proc/loadavg does not tell it" in said
    assert "PID 7: unknown threads, state: needs root" in said


def test_slices_of_a_gpu_are_listed():
    said = words(frames.frame(frames.node([frames.with_mig(frames.h200())])))
    assert "MIG 3g.71gb (instance 1): 40.0 GiB of 70.0 GiB" in said
    assert "unknown util_pct, gpm: NVML gives no utilisation for a GPU in MIG mode" in said


def test_unknown_figures_are_dashes_and_their_reasons_are_named():
    said = words(frames.nothing_known())
    assert "0 – – – – – – – – – –" in said
    assert "GPU 0: unknown util_pct: Not Supported" in said
    assert "unknown itl: the page has no inter-token latency histogram" in said
    assert "/proc/stat can't be read: permission denied" in said
    assert " 0 %" not in said


@pytest.mark.parametrize(
    ("quantile", "said"),
    [
        (None, "–"),
        (Quantile(0.04, 0.06, 0.047), "47 ms (40–60 ms)"),
        (Quantile(0.0, 0.01, None), "≤ 10 ms"),
        (Quantile(0.5, 1.9, None), "500 ms–1.90 s"),
        (Quantile(1.0, 2.5, None), "1.00–2.50 s"),
        (Quantile(80.0, None, None), "> 80.0 s"),
        (Quantile(120.0, 240.0, 180.0), "3 m 00 s (2 m 00 s–4 m 00 s)"),
    ],
)
def test_a_quantile_never_claims_more_than_its_bucket_tells(quantile, said):
    assert quantile_text(quantile) == said


def test_latencies_have_count_mean_and_three_quantiles():
    assert "TTFT 755 50 ms 47 ms (38–56 ms) 72 ms (58–86 ms) 97 ms (78–116 ms)" in words(LOADED)
    assert "ITL 96.6k 2.7 ms ≤ 10 ms ≤ 10 ms ≤ 10 ms" in words(LOADED)


def test_load_and_rates_are_there():
    said = words(frames.eight_gpus())
    assert "running 32, waiting 3 (capacity 3), KV cache 0.4 %" in said
    assert "prompt 19.8k tok/s (computed 10.9k, cached 8870), generation 9702 tok/s" in said
    assert "steps 333/s, tokens per step 61.9, prefix cache hits 45 % (since start 43 %)" in said


def test_ranks_stand_side_by_side():
    said = words(frames.eight_gpus())
    assert "rank running waiting KV prompt/s generated/s steps/s TTFT p95" in said
    assert "1 7 3 0.4 % 9900 4851 333" in said


def test_models_on_one_page_are_told_apart():
    said = words(frames.everything_on())
    assert said.index("model base") < said.index("model sql-lora")
    assert "speculative decoding: accepted 61 %, mean length 2.84, by position 82 % 60 % 42 %" in said


def test_before_the_second_reading_there_is_no_window_to_speak_of():
    engine = frames.engine(window=EngineWindow(EngineLive(None, None, missing={"ttft": "needs two scrapes"})))
    said = words(frames.frame(None, (frames.target(),), (engine,)))
    assert "one reading so far" in said
    assert "unknown ttft: needs two scrapes" in said


def test_an_engine_that_stopped_answering_is_shown_with_the_age_of_what_is_shown():
    said = words(frames.unreachable())
    assert "Notes engine: cannot read http://127.0.0.1:8000/metrics: no answer within 2 s" in said
    assert "(what is shown is 42.3 s old)" in said


def test_what_has_not_answered_yet_is_said():
    said = words(ALL[-1])
    assert "GPUs: no answer yet" in said
    assert "host: no answer yet" in said


def test_the_host_has_its_processes_threads_and_quota():
    said = words(LOADED)
    assert "Host CPU 3 % of 192 cores, load 4.72" in said
    assert "624 engine-core 104 % 97 % 0 % 4.6 GiB 0 B 2271" in said
    assert "threads: VLLM::EngineCor 97 %, output-thread 6 %, zmq-io 1 %" in said
    assert "CPU quota 32, uses 1.36 CPUs, throttled in 0 % of the periods; memory 9.0 GiB, limit 64.0 GiB" in said


def test_other_targets_are_listed_and_several_candidates_ask_for_a_choice():
    assert "Also on this node vllm: Qwen/Qwen3-32B (PID 2600, GPU 4, 5, 6, 7, 71.1 GiB of GPU memory)" in words(
        frames.eight_gpus()
    )
    assert "2 engines are here: --pid, --gpu or --url chooses one" in words(frames.several_candidates())


def test_a_node_without_gpu_and_engine_says_both():
    empty = frames.frame(GpuNode(problem="no NVIDIA driver library on this machine"))
    said = words(replace(empty, targets=frames.part(TargetList())))
    assert "No engine found on this node" in said
    assert "No GPU: no NVIDIA driver library on this machine" in said


def test_names_that_look_like_markup_are_shown_character_by_character():
    said = words(frames.markup_in_names())
    for name in frames.markup_names():
        assert name in said


def test_control_characters_of_foreign_text_are_made_visible():
    evil = "m\x1b[31mred\n\u202egnp.exe"
    named = replace(frames.target(model=evil, user=evil, container=evil), argv=("vllm", evil))
    live = EngineLive(model=evil, rank=evil, finished_per_s={evil: 1.0}, waiting_by_reason={evil: 1.0})
    window = EngineWindow(live, (live, live), (live, live))
    whole = text(
        replace(
            frames.frame(GpuNode((Gpu(0, name=evil, missing={"util_pct": evil}),), driver=evil), (named,)),
            engines=(frames.engine(window=window, value=frames.reading(notes=(evil,), sleeping=evil), error=evil),),
            notes=(evil,),
            simulated=evil,
        )
    )
    assert r"m\x1b[31mred\n\u202egnp.exe" in whole
    assert whole.replace("\n", "").isprintable()


@given(st.text(max_size=300))
def test_no_name_breaks_the_layout(name):
    whole = text(frames.frame(None, (Target(key=frames.KEY, engine="vllm", model=name, argv=(name, name)),)))
    for line in whole.splitlines():
        assert len(line) <= WIDTH
        assert line.isprintable()


def test_limits_are_told_with_the_floor_that_they_imply():
    known = LimitEstimate("MBU", "…", 19.3, (), 0.000442)
    unknown = LimitEstimate("MFU", "…", unknown="the model's size is unknown")
    loaded = frames.one_gpu_loaded()
    engine = replace(loaded.engines[0], limits=EngineLimits(known, unknown))
    told = text(replace(loaded, engines=(engine,)))
    assert "MBU 19.3 % of the memory bandwidth (floor of TPOT 442 µs)" in told
    assert "MFU unknown: the model's size is unknown" in told
