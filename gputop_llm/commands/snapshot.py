"""`gputop-llm snapshot`: two samples of everything as text or JSON, then ends."""

from __future__ import annotations

import os
import platform
import time
from argparse import Namespace
from dataclasses import replace

from gputop_llm.commands import output
from gputop_llm.commands.live import session_on, short_settings
from gputop_llm.config import Config
from gputop_llm.model import Frame
from gputop_llm.node import driver_here
from gputop_llm.report import jsonform, text
from gputop_llm.report.outcome import judge
from gputop_llm.session import Session
from gputop_llm.tui.terminal import ascii_only

# How long slow sources are waited for beyond one period. Above the deadline of every source that can be hurt
# by the network, so that it is their own sentence that is shown.
PATIENCE_S = 6.0
# The first at once, the second soon after it, and the third a period later: what is shown covers a whole period.
POLLS = 3
_LOOK_S = 0.02


def run(arguments: Namespace) -> int:
    """Takes the snapshot, prints it; returns the exit code of what it amounts to.

    Raises:
        UsageError: a setting can't be used, or there is no such scenario.
    """
    config = short_settings(arguments)
    # The window reaches back over everything that is sampled.
    config = replace(config, window_s=max(config.window_s, config.period_s + 1.0))
    with session_on(config, arguments, arguments.demo) as session:
        session.start()
        frame = settled_frame(session, config)
    if arguments.json:
        output.write_text(jsonform.frame_text(frame) + "\n")
    else:
        output.write_text(text.frame_text(frame, platform.node(), ascii_only(os.environ, config)))
    outcome = judge(frame, config, arguments.demo is None and driver_here())
    output.complain(outcome.sentences)
    return outcome.code


def settled_frame(session: Session, config: Config) -> Frame:
    """The frame once all sources have been sampled over one period; what there is when they take too long."""
    give_up = time.monotonic() + config.period_s + PATIENCE_S
    while not session.settled(POLLS) and time.monotonic() < give_up:
        time.sleep(_LOOK_S)
    return session.tick()
