"""What an nsys session is at, and what it was told by the command that started the program."""

from __future__ import annotations

from gputop_llm.capture.nsys.found import Found
from gputop_llm.capture.nsys.tool import ASK_WITHIN_S, Session, Tool
from gputop_llm.errors import GputopError
from gputop_llm.sources.procfs import ProcFs

#: It waits for a range of the program's own.
ARMED = "StartRange"
#: For a list of sessions beside a key press; it takes 14 ms.
LOOK_WITHIN_S = 3.0
_MOST_ANCESTORS = 64


def session_now(found: Found, within_s: float = ASK_WITHIN_S) -> Session:
    """The session of a process.

    Raises:
        GputopError: it isn't there, or can't be told from others.
    """
    sessions = Tool(found.tool).sessions(within_s)
    wanted = found.session
    if not wanted:
        launched = [one for one in sessions if one.launched]
        if len(launched) != 1:
            raise GputopError(
                "cannot capture",
                f"the process doesn't say which of {len(launched)} nsys sessions it runs in",
                "use nsys yourself, or a newer one",
            )
        wanted = launched[0].id
    session = next((one for one in sessions if one.id == wanted), None)
    if session is None:
        raise GputopError(
            "cannot capture",
            f"nsys knows no session {wanted}: its agent has ended, or it is another user's",
            "start the server again, or run gputop-llm as the user of the server",
        )
    return session


def taken(session: Session) -> tuple[str, str]:
    """Why nothing can be started in a session, and what would help; ("", "") where it is at rest."""
    if not session.collecting:
        return "", ""
    if session.state == ARMED:
        why = f"the nsys session {session.name} waits for a range of the program's own (it is in state {ARMED})"
    else:
        why = f"somebody else collects in the nsys session {session.name} (it is in state {session.state})"
    return why, f"nsys stop --session={session.name} ends that"


def command_of(pid: int, proc: ProcFs) -> tuple[str, ...]:
    """The command line of the nsys that started a process or one of its ancestors; () where there is none any more."""
    for _ in range(_MOST_ANCESTORS):
        try:
            argv, pid = proc.argv(pid), proc.stat(pid).ppid
        except (OSError, ValueError):
            return ()
        if argv[1:2] in (("profile",), ("launch",)) and argv[0].rpartition("/")[2] == "nsys":
            return argv
        if pid <= 1:
            return ()
    return ()


def first_option(argv: tuple[str, ...], *names: str) -> str:
    """The value of an option of nsys: the first of those names counts, as the program's own come after; "" without."""
    for at, word in enumerate(argv):
        if word in names:
            return argv[at + 1] if at + 1 < len(argv) else ""
        name, given, value = word.partition("=")
        if given and name in names:
            return value
    return ""
