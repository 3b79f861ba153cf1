"""From reports to deliveries: what the session has of this package."""

from __future__ import annotations

import platform
import time

from gputop_llm.config import Config
from gputop_llm.model import Frame
from gputop_llm.model.symptom import SymptomReport
from gputop_llm.notify.announcer import Announcer
from gputop_llm.notify.notice import notice
from gputop_llm.notify.outbox import Outbox


class Announcements:
    """Runs the command and posts to the webhook that the settings name.

    Raises:
        UsageError: one of them can't be used.
    """

    def __init__(self, config: Config) -> None:
        deliveries = []
        if config.exec is not None:
            from gputop_llm.notify.command import Command

            deliveries.append(Outbox(Command(config.exec)))
        if config.webhook is not None:
            from gputop_llm.notify.webhook import Webhook

            deliveries.append(Outbox(Webhook(config.webhook, config.origins.get("webhook", "webhook"), config.ca_file)))
        self._outboxes = deliveries
        self._announcer = Announcer()
        self._node = platform.node()

    def update(self, frame: Frame, report: SymptomReport) -> None:
        """Tells of what the report changes; returns at once."""
        for event in self._announcer.update(report, frame.mono_s, frame.at_s):
            told = notice(event, self._node, frame.simulated)
            for outbox in self._outboxes:
                outbox.put(told)

    def close(self, wait_s: float) -> None:
        """Ends all deliveries; what is not delivered within `wait_s` seconds is given up."""
        until = time.monotonic() + wait_s
        for outbox in self._outboxes:
            outbox.close(max(0.0, until - time.monotonic()))
