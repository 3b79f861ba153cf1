"""Which exit code a frame amounts to, and the sentence that says why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gputop_llm.config import Config
from gputop_llm.errors import ExitCode
from gputop_llm.model import EngineReading, Frame, GpuNode, Part, Target, TargetList
from gputop_llm.report.outcome import Outcome, judge
from tests.support import frames

NO_DRIVER = GpuNode(problem="no NVIDIA driver library on this machine")
LOADED = frames.one_gpu_loaded()
CPU_ONLY = replace(LOADED, gpus=frames.part(NO_DRIVER))
EMPTY = replace(CPU_ONLY, targets=frames.part(TargetList()), engines=(), focus=None)
NAMED = replace(frames.target(), urls_from="flag")


def code(frame: Frame, driver_here: bool = True, **settings) -> ExitCode:
    return judge(frame, Config(**settings), driver_here).code


def sentences(frame: Frame, driver_here: bool = True, **settings) -> str:
    return "\n".join(judge(frame, Config(**settings), driver_here).sentences)


@pytest.mark.parametrize("frame", [LOADED, frames.tp2(), frames.gpu_without_engine(), frames.several_candidates()])
def test_a_node_where_everything_is_readable_is_fine(frame):
    assert judge(frame, Config(), True) == Outcome(ExitCode.OK)


def test_an_engine_without_a_gpu_on_a_machine_without_a_driver_is_fine():
    assert code(CPU_ONLY, driver_here=False) == ExitCode.OK


def test_a_driver_that_can_not_be_talked_to_is_partial():
    assert code(CPU_ONLY, driver_here=True) == ExitCode.PARTIAL
    assert sentences(CPU_ONLY) == "GPUs: no NVIDIA driver library on this machine"


def test_nothing_at_all_is_nothing_found_and_says_what_to_try():
    assert code(EMPTY, driver_here=False) == ExitCode.NOTHING_FOUND
    assert sentences(EMPTY, driver_here=False) == (
        "no GPU and no engine found on this node (no NVIDIA driver library on this machine); "
        "--demo healthy shows a simulated one"
    )


def test_a_broken_driver_and_no_engine_is_partial_since_there_may_be_gpus():
    assert code(EMPTY, driver_here=True) == ExitCode.PARTIAL


@pytest.mark.parametrize("part", ["gpus", "host", "targets"])
def test_a_source_that_failed_or_never_answered_is_partial(part):
    failed = replace(LOADED, **{part: frames.part(getattr(LOADED, part).value, error="it is gone")})
    assert code(failed) == ExitCode.PARTIAL
    assert "it is gone" in sentences(failed)
    silent = replace(LOADED, **{part: Part()})
    assert code(silent) == ExitCode.PARTIAL
    assert "not answered" in sentences(silent)


def test_a_lost_gpu_is_partial():
    lost = replace(LOADED, gpus=frames.part(frames.node([replace(frames.h200(3), lost=True)])))
    assert judge(lost, Config(), True) == Outcome(ExitCode.PARTIAL, ("GPU 3: lost",))


def test_a_field_that_a_gpu_does_not_have_is_no_failure():
    assert "fan_pct" in LOADED.gpus.value.gpus[0].missing
    assert code(LOADED) == ExitCode.OK


@pytest.mark.parametrize(
    ("scrape", "said"),
    [
        ({"error": "cannot read http://h/metrics: connection refused"}, "cannot read http://h/metrics"),
        ({"value": None}, "engine http://127.0.0.1:8000/metrics: it has not answered yet"),
        ({"value": EngineReading(engine="vllm", problem="only process metrics")}, "only process metrics"),
    ],
)
def test_an_engine_whose_page_can_not_be_used_is_partial(scrape, said):
    frame = replace(LOADED, engines=(frames.engine(**scrape),))
    assert code(frame) == ExitCode.PARTIAL
    assert said in sentences(frame)


def test_an_engine_that_answered_only_once_is_partial_since_it_has_no_rates():
    engine = frames.engine()
    frame = replace(LOADED, engines=(replace(engine, scrape=replace(engine.scrape, polls=1)),))
    assert code(frame) == ExitCode.PARTIAL
    assert "rates need two" in sentences(frame)


def test_a_pid_that_no_target_has_is_nothing_found():
    assert code(LOADED, pid=624) == ExitCode.OK
    assert code(LOADED, pid=1) == ExitCode.NOTHING_FOUND
    assert sentences(LOADED, pid=1) == "PID 1 belongs to no engine and holds no GPU memory"


def test_a_pid_is_not_called_absent_when_processes_could_not_be_looked_for():
    assert code(replace(LOADED, targets=frames.part(None, error="no /proc")), pid=1) == ExitCode.PARTIAL


def test_a_gpu_that_is_not_there_is_nothing_found():
    without = replace(LOADED, gpus=frames.part(frames.node([])))
    assert code(without, gpu=7) == ExitCode.NOTHING_FOUND
    assert sentences(without, gpu=7) == "there is no GPU 7 on this node"
    assert code(LOADED, gpu=0) == ExitCode.OK


def test_a_gpu_on_a_broken_driver_is_not_called_absent():
    assert code(CPU_ONLY, driver_here=True, gpu=0) == ExitCode.PARTIAL
    assert code(CPU_ONLY, driver_here=False, gpu=0) == ExitCode.NOTHING_FOUND


def test_a_url_where_nothing_answers_is_nothing_found_and_says_why():
    engine = frames.engine(value=None, error=f"cannot read {frames.URL}: nothing listens there (connection refused)")
    frame = frames.frame(NO_DRIVER, (NAMED,), (engine,))
    assert code(frame, driver_here=False, url=frames.URL) == ExitCode.NOTHING_FOUND
    assert sentences(frame, driver_here=False, url=frames.URL) == engine.scrape.error


def test_a_url_that_answered_before_is_partial_and_not_absent():
    frame = frames.frame(NO_DRIVER, (NAMED,), (frames.engine(error="no answer within 5 s"),))
    assert code(frame, driver_here=False, url=frames.URL) == ExitCode.PARTIAL


OTHER_URL = "http://127.0.0.1:8001"
SILENT = frames.engine("other", OTHER_URL, value=None, error="refused")


def beside(asked: Target, other: Target, *engines, gpus: GpuNode = NO_DRIVER) -> Frame:
    return frames.frame(gpus, (asked, other), engines)


def test_another_engine_that_is_silent_is_not_what_the_url_asked_about():
    frame = beside(NAMED, frames.target("other", 900, 901), frames.engine(), SILENT)
    assert judge(frame, Config(url=frames.URL), False) == Outcome(ExitCode.OK)


def test_the_engine_at_the_url_is_judged_beside_one_that_answers():
    frame = beside(
        NAMED, frames.target("other", 900, 901), frames.engine(error="no answer within 5 s"), frames.engine("other")
    )
    assert judge(frame, Config(url=frames.URL), False) == Outcome(ExitCode.PARTIAL, ("no answer within 5 s",))


def test_another_engine_that_is_silent_is_not_what_the_pid_asked_about():
    frame = beside(frames.target(), frames.target("other", 900, 901), frames.engine(), SILENT)
    assert code(frame, driver_here=False, pid=624) == ExitCode.OK
    assert code(frame, driver_here=False, pid=900) == ExitCode.PARTIAL


def test_without_a_flag_every_engine_is_judged():
    frame = beside(frames.target(), frames.target("other", 900, 901), frames.engine(), SILENT)
    assert judge(frame, Config(), False) == Outcome(ExitCode.PARTIAL, ("refused",))


def test_an_engine_on_other_gpus_is_not_what_the_gpu_asked_about():
    def on_gpu(target: Target, *gpus: int) -> Target:
        return replace(target, processes=tuple(replace(p, gpus=gpus) for p in target.processes))

    here, other = on_gpu(frames.target(), 0), frames.target("other", 900, 901)
    node = frames.node([frames.h200(0)])
    elsewhere = beside(here, on_gpu(other, 1), frames.engine(), SILENT, gpus=node)
    assert code(elsewhere, gpu=0) == ExitCode.OK
    unknown = beside(here, on_gpu(other), frames.engine(), SILENT, gpus=node)
    assert code(unknown, gpu=0) == ExitCode.PARTIAL


def test_a_lost_gpu_counts_if_the_asked_engine_uses_it_or_may():
    used = replace(NAMED, processes=tuple(replace(p, gpus=(0,)) for p in NAMED.processes))
    unknown = replace(NAMED, processes=tuple(replace(p, gpus=()) for p in NAMED.processes))
    for lost, target, expected in (
        (3, used, ExitCode.OK),
        (0, used, ExitCode.PARTIAL),
        (3, unknown, ExitCode.PARTIAL),
    ):
        node = frames.node([replace(frames.h200(i), lost=i == lost) for i in range(4)])
        assert code(frames.frame(node, (target,), (frames.engine(),)), url=frames.URL) == expected
