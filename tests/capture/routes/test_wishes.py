"""What a capture is asked to record: by the route that is named, or the best open one that can do it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from gputop_llm.arguments.capturing import add_capture
from gputop_llm.arguments.shared import Parser
from gputop_llm.capture.await_step import await_step, stage_of, tells_of
from gputop_llm.capture.engine_watch import EngineSample
from gputop_llm.capture.node_route import NodeRoute
from gputop_llm.capture.plan import plan_json
from gputop_llm.capture.repeat import command_of
from gputop_llm.capture.ways import WAYS
from gputop_llm.commands.capture_wishes import options_of, plan_with
from gputop_llm.config import Config
from gputop_llm.errors import UsageError
from gputop_llm.model import Target, TargetProcess
from tests.capture.native.hosting import built

TARGET = Path(__file__).with_name("torch_target.py")


@pytest.fixture(scope="session")
def native(tmp_path_factory):
    base = tmp_path_factory.getbasetemp()
    return built((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "native")


@pytest.fixture
def target(native, tmp_path):
    """Two busy Python processes with torch, as ranks of one engine."""
    with contextlib.ExitStack() as stack:
        processes = []
        for number in range(2):
            counter = tmp_path / f"counter-{number}"
            counter.write_bytes(bytes(8))
            process = subprocess.Popen(
                [sys.executable, str(TARGET), str(tmp_path / "calls"), str(counter), str(native.torch), "good"],
                stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            stack.callback(process.stdout.close)
            stack.callback(process.wait)
            stack.callback(process.kill)
            assert process.stdout.readline() == "ready\n"
            processes.append(TargetProcess(process.pid, 1, "worker", "w", f"TP{number}", (number,), "nvml"))
        yield Target(key="vllm:1:0", engine="vllm", root_pid=1, urls=("http://h/metrics",), processes=tuple(processes))


def parsed(*words):
    """The arguments of `gputop-llm capture WORDS`."""
    parser = Parser()
    add_capture(parser.add_subparsers(parser_class=Parser))
    return parser.parse_args(["capture", *words])


def planned(target, captures, *words):
    arguments = parsed(*words)
    with contextlib.closing(NodeRoute(Config(), captures)) as route:
        return plan_with(route, SimpleNamespace(engines=()), target, arguments)


def test_who_wants_shapes_gets_the_best_open_route_that_records_them(target, captures):
    plan = planned(target, captures, "--with", "shapes")

    assert plan.route == "kineto-agent", "neither asks it for orders, nor has vLLM been given a profiler"
    assert (plan.options["cpu"], plan.options["shapes"], plan.options["memory"]) == (True, True, False)
    facts = dict(plan.facts())
    assert "shapes of their inputs" in facts["what"]
    assert "0.6 s without a token" in facts["cost"]


def test_nothing_but_the_gpu_can_be_asked_for(target, captures):
    plan = planned(target, captures, "--route", "kineto-agent", "--with", "gpu")

    assert not any(plan.options[name] for name in ("cpu", "shapes", "memory", "stacks"))


def test_a_native_window_of_the_gpu_alone_leaves_the_api_calls_out(target, captures):
    alone = planned(target, captures, "--route", "native", "--with", "gpu")
    whole = planned(target, captures, "--route", "native")

    assert planned(target, captures, "--route", "native", "--with", " gpu,gpu").kinds == alone.kinds
    assert alone.kinds == ("kernels", "copies", "memsets")
    assert whole.kinds == (*alone.kinds, "runtime", "driver")
    assert "API calls" not in dict(alone.facts())["what"]
    assert "API calls" in dict(whole.facts())["what"]
    with pytest.raises(UsageError, match="--route native can't do that"):
        planned(target, captures, "--route", "native", "--with", "gpu,cpu")


def test_what_a_native_window_leaves_for_good_is_said_before_it_is_taken(target, captures):
    whole, alone = (
        dict(planned(target, captures, "--route", "native", *more).facts())["stays"] for more in ((), ("--with", "gpu"))
    )

    assert "slower CUDA calls: 7 to 28 % fewer tokens where the host is the limit" in whole
    assert "`--route native --with gpu` leaves less" in whole
    assert "8 % fewer tokens" in alone


def test_some_ranks_can_be_chosen(target, captures):
    plan = planned(target, captures, "--route", "kineto-agent", "--ranks", "1")

    assert [rank.number for rank in plan.ranks] == [1]
    with pytest.raises(UsageError, match="there is no rank 7"):
        planned(target, captures, "--ranks", "7")
    with pytest.raises(UsageError, match="--ranks wants numbers"):
        planned(target, captures, "--ranks", "all")
    with pytest.raises(UsageError, match="the engine records all of its ranks"):
        planned(target, captures, "--route", "engine-endpoint", "--ranks", "0")


@pytest.mark.parametrize(
    "words",
    [
        ["--route", "kineto-agent", "--with", "gpu"],
        ["--route", "native", "--with", "gpu"],
        ["--with", "cpu,memory", "--at", "decode", "--ranks", "1", "--seconds", "0.3"],
        ["--with", "python-stacks"],
        ["--route", "engine-endpoint", "--at", "prefill"],
        ["--route", "nsys-system", "--ranks", "0"],
        ["--route", "kineto-agent"],
    ],
)
def test_the_command_that_repeats_a_capture_plans_the_same(words, target, captures):
    plan = planned(target, captures, *words)
    command = command_of(json.loads(json.dumps(plan_json(plan))))

    assert command.startswith(f"gputop-llm capture --pid {plan.ranks[0].pid} --seconds ")
    again = planned(target, captures, *command.split()[2:])
    same = ("route", "options", "kinds", "ranks", "window_s", "some_ranks")
    assert [getattr(again, name) for name in same] == [getattr(plan, name) for name in same]
    assert ("--with" in command) == ("--with" in words)


def test_it_names_steps_and_stacks_and_nothing_of_a_plan_that_is_none():
    rank = {"pid": 7, "number": 0}
    told = {"ranks": [rank], "window_s": 1.5, "steps": 40, "route": "native", "options": {"stacks": True}}

    assert command_of(told) == "gputop-llm capture --pid 7 --steps 40 --route native --stacks"
    assert command_of({"ranks": [rank], "window_s": 0.5}) == "gputop-llm capture --pid 7 --seconds 0.5"
    for odd in ({}, {"ranks": 7}, {"ranks": [7]}, {"ranks": [{"pid": "x; rm -rf /"}]}):
        assert command_of(odd) is None
    hostile = {"ranks": [rank], "window_s": 1, "route": "$(x)", "options": {"stage": "`x`"}}
    assert command_of(hostile) == "gputop-llm capture --pid 7 --seconds 1"


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.key)
def test_each_cost_is_said_to_be_seen_on_a_gpu_or_to_be_a_guess(way, target, captures):
    cost = dict(planned(target, captures, "--route", way.key).facts())["cost"]

    assert ("as seen: " in cost, "a guess: " in cost) == (way.cost.measured, not way.cost.measured)
    assert not way.cost.measured or "one H200" in way.cost.seen


def test_what_samples_of_stacks_cost_is_said(target, captures):
    with contextlib.closing(NodeRoute(Config(), captures)) as route:
        plan = route.plan(SimpleNamespace(engines=()), target, None, None, "native", {"stacks": True})

    assert "the samples cost at most about a tenth of a CPU core" in dict(plan.facts())["cost"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--route", "native", "--with", "cpu"], "--route native can't do that"),
        (["--route", "kineto-daemon", "--at", "decode"], "it knows no stage; .*kineto-agent"),
        (["--with", "colours"], "--with knows no 'colours'"),
        (["--route", "teleport"], "there is no route teleport"),
    ],
)
def test_what_a_route_can_not_do_is_said_with_who_can(words, says, target, captures):
    with pytest.raises(UsageError, match=says):
        planned(target, captures, *words)


def test_python_stacks_are_off_unless_they_are_named():
    assert options_of(parsed("--with", "cpu,shapes,memory"))["stacks"] is False
    assert options_of(parsed("--with", "python-stacks"))["stacks"] is True
    assert options_of(parsed()) == {}


def sample(at_s, tokens, running=1.0, waiting=0.0):
    return EngineSample(int(at_s * 1e9), at_s, 0, tokens, tokens, running, waiting)


@pytest.mark.parametrize(
    ("stage", "before", "now", "told"),
    [
        ("decode", sample(0, 10), sample(1, 20), True),
        ("decode", sample(0, 10), sample(1, 10), False),
        ("decode", sample(0, 10), sample(1, 20, running=0.0), False),
        ("decode", sample(0, None), sample(1, 20), False),
        ("prefill", sample(0, 10), sample(1, 20, waiting=2.0), True),
        ("prefill", sample(0, 10, running=1.0), sample(1, 20, running=3.0), True),
        ("prefill", sample(0, 10, running=3.0), sample(1, 20, running=3.0), False),
        ("prefill", sample(0, 10, running=None), sample(1, 20), False),
    ],
)
def test_a_step_is_told_by_two_answers_of_the_engine(stage, before, now, told):
    assert tells_of(stage, [before, now]) is told
    assert tells_of(stage, [now]) is False


def test_a_step_that_never_comes_is_not_waited_for_for_ever():
    assert await_step("decode", lambda: (), lambda: False, longest_s=0.2) is False
    assert await_step("decode", lambda: (), lambda: True) is False
    with pytest.raises(UsageError, match="there is no stage"):
        stage_of("lunch")
