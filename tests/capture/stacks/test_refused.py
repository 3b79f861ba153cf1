"""Each way in which py-spy was seen to fail is told as its cause and the one way out of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gputop_llm.capture.stacks.refused import Situation, unreadable

ENDINGS = json.loads((Path(__file__).parents[2] / "fixtures" / "stack_dump_endings.json").read_text())


def refusal(name, **changes):
    ending = next(one for one in ENDINGS if one["name"] == name)
    at = Situation(
        uid=ending["uid"],
        target_uid=ending["target_uid"],
        ptrace_scope=ending["ptrace_scope"],
        capable=False,
        container=ending["container"],
        **changes,
    )
    return unreadable(ending["stderr"], ending["exit"] is not None, at)


@pytest.mark.parametrize(
    ("name", "why", "todo"),
    [
        ("user", "kernel.yama.ptrace_scope is 1", "sudo sysctl kernel.yama.ptrace_scope=0"),
        ("other-owner", "belongs to another user", "as root (sudo)"),
        ("container-root", "without the capability SYS_PTRACE", "--cap-add=SYS_PTRACE"),
        ("library", "can't be seen from here", "inside that container"),
        ("ended", "the process has ended", "choose one that runs"),
        ("time-limit", "within the time limit", "try again"),
    ],
)
def test_each_ending_has_its_cause_and_way_out(name, why, todo):
    refused = refusal(name)

    assert why in refused.why
    assert todo in refused.todo


def test_root_in_a_container_is_not_sent_to_sudo():
    assert "sudo" not in refusal("container-root").todo


def test_after_the_time_limit_it_is_said_whether_the_process_runs():
    assert "runs on" in refusal("time-limit").why
    assert "is stopped" in refusal("time-limit", stopped=True).why
    assert "has ended" in refusal("time-limit", alive=False).why


def test_an_unknown_ending_is_quoted_on_one_line_and_inert():
    refused = unreadable("\x1b[31mboom\nsecond", True, Situation(0, 0, 0, True, False))

    assert refused.why == "py-spy could not: \\x1b[31mboom"
