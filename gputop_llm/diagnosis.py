"""What the rules say of each frame, and all that follows from it: baselines are kept, and others are told."""

from __future__ import annotations

import logging
import time
from dataclasses import replace

from gputop_llm import paths
from gputop_llm.config import Config
from gputop_llm.model import Frame
from gputop_llm.sampling.history import History
from gputop_llm.store import baselines
from gputop_llm.symptoms.baseline import LearningBaseline, PastKey
from gputop_llm.symptoms.catalogue import RULES
from gputop_llm.symptoms.engine import SymptomEngine
from gputop_llm.symptoms.limits import Limits
from gputop_llm.symptoms.table import HOLDS, THRESHOLDS

log = logging.getLogger(__name__)

FRAMES_S = 120.0
SAVE_EVERY_S = 180.0

# Settings that are thresholds by a name of their own.
_SLOS = {"slo_ttft_s": "ttft-high.p95_s", "slo_tpot_s": "tpot-high.p95_s"}


def limits(config: Config) -> Limits:
    """The thresholds in force under these settings.

    Raises:
        UsageError: one that they name doesn't exist.
    """
    overrides = dict(config.thresholds)
    origins = dict.fromkeys(overrides, config.origins.get("thresholds", "config file"))
    for setting, name in _SLOS.items():
        value = getattr(config, setting)
        if value is not None:
            overrides[name] = value
            origins[name] = f"SLO {config.origins.get(setting, setting)}"
    return Limits(THRESHOLDS, HOLDS, overrides, origins=origins)


class Diagnosis:
    """Judges frames, one after the other, on the session's thread.

    Args:
        config: thresholds, SLOs, whom to tell.
        history: of the same session; it has each frame before it is judged.
        simulated: the label of a demo, whose baselines are not kept.

    Raises:
        UsageError: a threshold, command or webhook of the settings can't be used.
    """

    def __init__(self, config: Config, history: History, simulated: str | None) -> None:
        self._history = history
        self._learner = LearningBaseline()
        self._engine = SymptomEngine(RULES, limits(config), learner=self._learner)
        folder = None if simulated else paths.baselines_folder()
        self._keeper = None if folder is None else baselines.BaselineKeeper(folder)
        self._saved_at: float | None = None
        self._announcements = None
        if config.exec is not None or config.webhook is not None:
            from gputop_llm.notify.announcements import Announcements

            self._announcements = Announcements(config)

    def of(self, frame: Frame) -> Frame:
        """The frame with what the rules say of it; without, should they fail."""
        try:
            self._adopt(frame)
            report = self._engine.update(self._history.frames(FRAMES_S), self._history.series)
            if self._announcements is not None:
                self._announcements.update(frame, report)
            if self._saved_at is None or frame.mono_s - self._saved_at >= SAVE_EVERY_S:
                self._saved_at = frame.mono_s
                self._keep()
        except Exception:  # the figures are worth showing without what they mean
            log.exception("a frame could not be judged")
            return frame
        return replace(frame, symptoms=report)

    def close(self, wait_s: float) -> None:
        """Stores what was learnt and ends all deliveries; what takes longer than `wait_s` seconds is given up."""
        until = time.monotonic() + wait_s
        if self._keeper is not None:
            self._keep()
            self._keeper.close(wait_s)
        if self._announcements is not None:
            self._announcements.close(max(0.0, until - time.monotonic()))

    def _adopt(self, frame: Frame) -> None:
        if self._keeper is None:
            return
        for wanted in self._learner.wanted():
            self._keeper.ask(wanted)
        for key, stored in self._keeper.found():
            try:
                self._learner.adopt(PastKey(*key), stored, frame.at_s)
            except ValueError as error:
                baselines.forgotten(baselines.file_of(self._keeper.folder, key), error)

    def _keep(self) -> None:
        if self._keeper is not None:
            for key, past in self._learner.changed().items():
                self._keeper.keep(key, past)
