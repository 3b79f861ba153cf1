"""Takes a window in the nsys session of a target."""

from __future__ import annotations

from gputop_llm.capture.nsys.collection import Collection
from gputop_llm.capture.nsys.found import Found, InTheWay, session_of
from gputop_llm.capture.nsys.session_way import look
from gputop_llm.capture.nsys.tool import Session, Tool
from gputop_llm.capture.nsys.window import WindowTaker
from gputop_llm.capture.preflight import Refused, check_room, check_ways
from gputop_llm.capture.way import Setting
from gputop_llm.errors import GputopError
from gputop_llm.sources.procfs import ProcFs

_NOTHING_SEEN = (
    "nsys saw no event: the engine did nothing, or the processes that use the GPU are not traced (workers must be "
    "spawned, not forked)"
)


class SessionTaker(WindowTaker):
    """One window in one session."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting, _NOTHING_SEEN)

    def prepare(self) -> None:
        check_room(self.setting.plan)
        proc = ProcFs()
        check_ways(self.setting.plan, look, proc)
        found = self._session(proc)
        tool = Tool(found.tool)
        try:
            session = _the(tool, found.session)
        except GputopError as failure:
            raise Refused(failure.what, failure.why, failure.todo) from None
        options = (("--session", session.id), ("--sample", "none"), ("--cpuctxsw", "none"))
        self.data = found.data
        self.collection = Collection(tool, session.id, self.setting.folder, options)

    def _session(self, proc: ProcFs) -> Found:
        found = None
        for rank in self.setting.plan.ranks:
            one = session_of(rank.pid, proc)
            if isinstance(one, InTheWay):
                raise Refused(f"cannot capture PID {rank.pid} ({rank.title})", one.why, one.opens)
            if found is not None and one != found:
                raise Refused("cannot capture", "the target's processes run in different nsys sessions", "name one PID")
            found = one
        assert found is not None
        return found


def _the(tool: Tool, wanted: str) -> Session:
    """The session, ready to collect.

    Raises:
        GputopError: it isn't there, or is busy.
    """
    sessions = tool.sessions()
    if not wanted:
        launched = [one for one in sessions if one.launched]
        if len(launched) != 1:
            raise GputopError(
                "cannot capture",
                f"the process doesn't say which of {len(launched)} nsys sessions it runs in",
                "use nsys yourself, or a newer one",
            )
        wanted = launched[0].id
    found = next((one for one in sessions if one.id == wanted), None)
    if found is None:
        raise GputopError(
            "cannot capture",
            f"nsys knows no session {wanted}: its agent has ended, or it is another user's",
            "start the server again, or run gputop-llm as the user of the server",
        )
    if found.collecting:
        raise GputopError(
            "cannot capture now",
            f"somebody else collects in the nsys session {found.name} (it is in state {found.state})",
            f"nsys stop --session={found.name} ends that",
        )
    return found
