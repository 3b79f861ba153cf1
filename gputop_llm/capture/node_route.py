"""How captures are taken on this node: plans for its targets, each taken by a process of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gputop_llm import paths
from gputop_llm.capture.plan import Plan, make_plan
from gputop_llm.capture.run import CaptureRun
from gputop_llm.config import Config
from gputop_llm.errors import UsageError
from gputop_llm.follow import describe, key_may_go_to
from gputop_llm.model import Frame, Target
from gputop_llm.model.stacks import Flame, StackReport
from gputop_llm.redact import public_url


class NodeRoute:
    """Takes captures of what runs here.

    Args:
        config: with the engine's API key.
        folder: where captures go; None: the user's own place for them.

    Raises:
        UsageError: there is no such place.
    """

    def __init__(self, config: Config, folder: Path | None = None) -> None:
        self._config = config
        place = folder or paths.captures_folder()
        if place is None:
            raise UsageError(
                "there is no place for captures", "this user has no home directory (set HOME)", "name one with --output"
            )
        self._folder = place
        self._key_may_go: dict[str, bool] = {}

    def plan(
        self,
        frame: Frame,
        target: Target,
        window_s: float | None = None,
        steps: int | None = None,
        route: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Plan:
        """What a window of that target will do, by a route or, where none is named, by the best open one.

        Raises:
            GputopError: it can't be taken.
        """
        self._key_may_go[target.key] = key_may_go_to(target, self._config)
        engine = next((one for one in frame.engines if one.target_key == target.key), None)
        return make_plan(
            target, self._folder, seconds=window_s, steps=steps, engine=engine, route=route, options=options
        )

    def begin(self, plan: Plan, frames: Sequence[str], before: Sequence[Frame]) -> CaptureRun:
        """Begins it.

        Args:
            frames: what was seen of the node before, as lines of JSON, oldest first.
            before: the same frames themselves.

        Raises:
            GputopError: it can't be begun.
        """
        config = self._config
        # Plans know the user's URL as it may be shown; the token in it is needed to ask.
        given = config.url if config.url is not None and plan.url == public_url(config.url) else None
        key = config.api_key if self._key_may_go.get(plan.key) else None
        return CaptureRun(plan, api_key=key, url=given, ca_file=config.ca_file, frames=frames, before=before)

    def stacks(self, frame: Frame, target: Target) -> StackReport:
        """The Python stacks of its processes; none is stopped for it.

        Raises:
            GputopError: none can be read.
        """
        from gputop_llm.capture.stacks import looking

        return looking.report(describe(target), looking.processes_of(target))

    def doctor(self, target: Target) -> Sequence[str]:
        """Which ways into its processes are open. Nothing is done to them.

        Raises:
            NothingFound: one of them has just ended.
        """
        from gputop_llm.capture.doctor import examine
        from gputop_llm.capture.doctor_text import examined_lines

        return list(examined_lines(examine(target, None, self._folder)))

    def flames(self, target: Target, seconds: float) -> tuple[Flame, ...]:
        """Samples of them for that long.

        Raises:
            GputopError: none can be taken.
        """
        from gputop_llm.capture.stacks import flame, looking

        return flame.record(looking.processes_of(target), seconds)

    def close(self) -> None:
        """What was captured is kept."""
