"""Which model each engine serves, read beside everything else, and how close each engine is to its limits."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from gputop_llm.clock import Clock
from gputop_llm.config import Config
from gputop_llm.model import Frame, Target
from gputop_llm.sampling.history import History

if TYPE_CHECKING:
    from gputop_llm.modelmath import ServedModel

log = logging.getLogger(__name__)

# A model that was not there yet may be downloading.
RETRY_S = 60.0
# Readers that never came back, together with those at work: a container may serve its files by a program that hangs.
MAX_READERS = 8


class ServedModels:
    """Reads each engine's model once, on a thread that nobody waits for.

    Args:
        read: what a target serves; may take for ever.
        config: of the session.
        history: of the same session.
        clock: time, for tests.
    """

    def __init__(
        self, read: Callable[[Target], ServedModel] | None, config: Config, history: History, clock: Clock
    ) -> None:
        self._read = read
        self._config = config
        self._history = history
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, ServedModel] = {}
        self._again_at: dict[str, float] = {}
        self._reading: dict[str, threading.Thread] = {}

    def look(self, targets: Iterable[Target]) -> None:
        """Starts to read what new engines serve, and forgets engines that are gone. Returns at once."""
        engines = {target.key: target for target in targets if target.engine != "cuda"}
        now = self._clock.mono()
        with self._lock:
            for key in self._known.keys() - engines.keys():
                self._known.pop(key)
                self._again_at.pop(key, None)
            for key, target in engines.items():
                if key not in self._reading and now >= self._again_at.get(key, now):
                    self._start(target)

    def _start(self, target: Target) -> None:
        if self._read is None or len(self._reading) >= MAX_READERS:
            return
        thread = threading.Thread(target=self._work, args=(target,), name=f"model of {target.key}", daemon=True)
        self._reading[target.key] = thread
        # Not again, unless it finds no model.
        self._again_at[target.key] = float("inf")
        thread.start()

    def _work(self, target: Target) -> None:
        from gputop_llm.modelmath import ServedModel

        assert self._read is not None
        try:
            served = self._read(target)
        except Exception as failure:  # the figures that don't need the model go on
            log.exception("the model of %s could not be read", target.key)
            served = ServedModel(problem=f"reading its config.json failed: {type(failure).__name__} (see the log)")
        with self._lock:
            del self._reading[target.key]
            self._known[target.key] = served
            if served.shape is None:
                self._again_at[target.key] = self._clock.mono() + RETRY_S

    def limits(self, frame: Frame) -> Frame:
        """The frame with how close each engine is to its limits; as it was, should that fail."""
        if self._read is None or not frame.engines:
            return frame
        # Imported when they are first needed: that takes 10 ms of a start.
        from gputop_llm.symptoms.mbu_mfu import estimate
        from gputop_llm.symptoms.view import MEAN_S, NodeView

        with self._lock:
            known = dict(self._known)
        try:
            view = NodeView((*self._history.frames(MEAN_S), frame))
            engines = tuple(
                replace(engine.frame, limits=estimate(engine, known.get(engine.frame.target_key), self._config))
                for engine in view.engines
            )
        except Exception:  # as with the symptoms
            log.exception("the limits of a frame could not be estimated")
            return frame
        return replace(frame, engines=engines)
