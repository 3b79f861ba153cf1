"""Windows of a session whose nsys fails, or is somebody else's at the moment."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from gputop_llm.capture.inject.openness import running_since
from gputop_llm.capture.nsys import session_way
from gputop_llm.capture.way import Seen
from gputop_llm.sources.procfs import ProcFs
from tests.capture.nsys.fake_nsys import make
from tests.capture.support import capture, last_of, plan_for, serving


@pytest.fixture
def under(tmp_path, monkeypatch):
    """Starts a server that looks as if it ran under an nsys that fails in one way; gives it, and nsys's folder."""
    import contextlib

    with contextlib.ExitStack() as stack:

        def start(failure="", words=""):
            folder = tmp_path / "nsys"
            make(folder, failure, words)
            compiler = shutil.which("cc") or shutil.which("gcc")
            library = folder / "libToolsInjection64.so"
            subprocess.run([compiler, "-shared", "-o", library, "-x", "c", "/dev/null"], check=True)
            monkeypatch.setenv("FAKE_CUDA", str(folder))
            return stack.enter_context(serving(tmp_path)), folder

        yield start


def taken(target, captures):
    with capture(plan_for(target, folder=captures, route="nsys-session")) as run:
        return last_of(run)


def test_a_collection_that_cannot_be_stopped_is_said_with_the_command_that_does(under, captures, monkeypatch):
    monkeypatch.setenv("GPUTOP_TEST_WRITTEN_S", "0.5")
    target, folder = under("stop", "Connection to Agent lost")
    ended = taken(target, captures)

    assert (ended.outcome, "nsys lost its agent" in ended.why) == ("failed", True), ended
    assert ended.todo == f"it may collect on: {folder / 'nsys'} stop --session=4711 ends that"
    assert target.serves()


@pytest.mark.parametrize(
    ("state", "why"),
    [("StartRange", "waits for a range of the program's own"), ("Collection", "somebody else collects")],
)
def test_a_session_of_somebody_else_is_closed_and_left_alone(state, why, under, captures):
    target, folder = under()
    seen = Seen(target.pid, running_since(target.pid), ProcFs())
    assert session_way.look(seen)[0].state == "open"
    (folder / "sessions.json").write_text(json.dumps({"4711": [state, 1, "theirs"]}))

    (route,) = session_way.look(seen)
    assert (route.state, why in route.why, route.opens) == ("closed", True, "nsys stop --session=theirs ends that")
    assert taken(target, captures).outcome == "refused"
    assert not (folder / "start.json").exists()
