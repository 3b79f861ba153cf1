"""What the rules say of each frame, and all that follows from it: baselines are kept, and others are told."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from gputop_llm import paths
from gputop_llm.config import Config
from gputop_llm.model import Frame
from gputop_llm.sampling.history import History
from gputop_llm.symptoms.limits import Limits
from gputop_llm.symptoms.table import HOLDS, THRESHOLDS

if TYPE_CHECKING:
    from gputop_llm.store.baselines import BaselineKeeper
    from gputop_llm.symptoms.baseline import LearningBaseline
    from gputop_llm.symptoms.engine import SymptomEngine

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
        self._limits = limits(config)
        self._simulated = simulated
        self._rules: tuple[SymptomEngine, LearningBaseline] | None = None
        self._keeper: BaselineKeeper | None = None
        self._saved_at: float | None = None
        self._announcements = None
        if config.exec is not None or config.webhook is not None:
            from gputop_llm.notify.announcements import Announcements

            self._announcements = Announcements(config)

    def of(self, frame: Frame) -> Frame:
        """The frame with what the rules say of it; without, should they fail."""
        try:
            if self._rules is None:
                self._rules = self._load()
            engine, learner = self._rules
            self._adopt(learner, frame)
            report = engine.update(self._history.frames(FRAMES_S), self._history.series)
            if self._announcements is not None:
                self._announcements.update(frame, report)
            if self._saved_at is None or frame.mono_s - self._saved_at >= SAVE_EVERY_S:
                self._saved_at = frame.mono_s
                self._keep(learner)
        except Exception:  # the figures are worth showing without what they mean
            log.exception("a frame could not be judged")
            return frame
        return replace(frame, symptoms=report)

    def close(self, wait_s: float) -> None:
        """Stores what was learnt and ends all deliveries; what takes longer than `wait_s` seconds is given up."""
        until = time.monotonic() + wait_s
        if self._keeper is not None and self._rules is not None:
            self._keep(self._rules[1])
            self._keeper.close(wait_s)
        if self._announcements is not None:
            self._announcements.close(max(0.0, until - time.monotonic()))

    def _load(self) -> tuple[SymptomEngine, LearningBaseline]:
        """The rules, imported when they are first needed: that takes as long as all else that a session imports."""
        from gputop_llm.store.baselines import BaselineKeeper
        from gputop_llm.symptoms import catalogue
        from gputop_llm.symptoms.baseline import LearningBaseline
        from gputop_llm.symptoms.engine import SymptomEngine

        folder = None if self._simulated else paths.baselines_folder()
        self._keeper = None if folder is None else BaselineKeeper(folder)
        learner = LearningBaseline()
        return SymptomEngine(catalogue.RULES, self._limits, learner=learner), learner

    def _adopt(self, learner: LearningBaseline, frame: Frame) -> None:
        if self._keeper is None:
            return
        for wanted in learner.wanted():
            self._keeper.ask(wanted)
        for key, stored in self._keeper.found():
            try:
                learner.adopt(key, stored, frame.at_s)
            except ValueError as error:
                self._keeper.forget(key, error)

    def _keep(self, learner: LearningBaseline) -> None:
        if self._keeper is not None:
            for key, past in learner.changed().items():
                self._keeper.keep(key, past)
