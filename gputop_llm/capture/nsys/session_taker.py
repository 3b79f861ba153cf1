"""Takes a window in the nsys session of a target."""

from __future__ import annotations

from gputop_llm.capture.nsys.collection import Collection
from gputop_llm.capture.nsys.found import Found, InTheWay, session_of
from gputop_llm.capture.nsys.session_way import look
from gputop_llm.capture.nsys.state import session_now
from gputop_llm.capture.nsys.tool import Session, Tool
from gputop_llm.capture.nsys.window import WindowTaker
from gputop_llm.capture.plan import Plan
from gputop_llm.capture.preflight import Refused, check_room, check_ways
from gputop_llm.capture.way import Setting
from gputop_llm.errors import GputopError
from gputop_llm.sources.procfs import ProcFs

NOTHING_SEEN = (
    "nsys saw no event: the engine did nothing, or the processes that use the GPU are not traced (workers must be "
    "spawned, not forked)"
)


class SessionTaker(WindowTaker):
    """One window in one session."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting, NOTHING_SEEN)

    def prepare(self) -> None:
        check_room(self.setting.plan)
        proc = ProcFs()
        check_ways(self.setting.plan, look, proc)
        found, session = session_for(self.setting.plan, proc)
        options = (("--session", session.id), ("--sample", "none"), ("--cpuctxsw", "none"))
        self.data = found.data
        self.collection = Collection(Tool(found.tool), session.id, self.setting.folder, options)


def session_for(plan: Plan, proc: ProcFs) -> tuple[Found, Session]:
    """The session of all processes of a plan.

    Raises:
        Refused: there is none, or several.
    """
    found = None
    for rank in plan.ranks:
        one = session_of(rank.pid, proc)
        if isinstance(one, InTheWay):
            raise Refused(f"cannot capture PID {rank.pid} ({rank.title})", one.why, one.opens)
        if found is not None and one != found:
            raise Refused("cannot capture", "the target's processes run in different nsys sessions", "name one PID")
        found = one
    assert found is not None
    try:
        return found, session_now(found)
    except GputopError as failure:
        raise Refused(failure.what, failure.why, failure.todo) from None
