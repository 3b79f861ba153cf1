"""Runs the app on a fake session in this terminal: `python -m tests.support.tui_driver [FRAME]`."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from gputop_llm.clock import SystemClock
from gputop_llm.config import Config
from gputop_llm.errors import GputopError
from tests.support import frames
from tests.support.fake_session import FakeSession


class DrivenSession(FakeSession):
    """Plays a moving frame in real time from a thread of its own."""

    stopped_file: Path | None = None
    hang_on_stop = False

    def __init__(self, base, back: int, period_s: float) -> None:
        super().__init__()
        self.clock = SystemClock()
        self.period_s = period_s
        self._base = base
        self._stop = threading.Event()
        now = self.clock.mono()
        self._shift = now - frames.MONO_S
        for frame in frames.moving(base, back):
            self._keep(frame)
        self._at = back

    def _keep(self, frame):
        shifted = replace(
            frame, at_s=frame.mono_s + self._shift + time.time() - time.monotonic(), mono_s=frame.mono_s + self._shift
        )
        self.latest = shifted
        self.history.append(shifted)
        return shifted

    def start(self, on_frame=None) -> None:
        self._on_frame = on_frame
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        self._stop.set()
        if self.stopped_file is not None:
            self.stopped_file.write_text("stopped")
        if self.hang_on_stop:
            time.sleep(60)

    def _run(self) -> None:
        while True:
            base = replace(self._base, mono_s=self.clock.mono() - self._shift, seq=self._at, period_s=self.period_s)
            if self.latest is not None:
                base = replace(base, focus=self.attached[-1] if self.attached else self._base.focus)
            newest = list(frames.moving(base, self._at + 1, start=self._at))[-1]
            self._at += 1
            self._keep(newest)
            if self._on_frame is not None:
                self._on_frame(newest)
            if self._stop.wait(self.period_s):
                return


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("frame", nargs="?", default="one_gpu_loaded")
    parser.add_argument("--seconds-back", type=int, default=600)
    parser.add_argument("--period", type=float, default=1.0)
    parser.add_argument("--ascii", action="store_true")
    parser.add_argument("--simulated")
    parser.add_argument("--stopped-file", type=Path, help="written when the session is stopped")
    parser.add_argument("--hang-on-stop", action="store_true", help="a session whose sources never let go")
    args = parser.parse_args()
    config = Config(ascii=args.ascii, origins={"ascii": "--ascii"} if args.ascii else {})
    from gputop_llm.tui.app import run

    base = replace(getattr(frames, args.frame)(), simulated=args.simulated)
    session = DrivenSession(base, args.seconds_back, args.period)
    session.stopped_file, session.hang_on_stop = args.stopped_file, args.hang_on_stop
    try:
        return run(session, config)  # type: ignore[arg-type]
    except GputopError as error:
        print(error.sentence(), file=sys.stderr)
        return int(error.exit_code)


if __name__ == "__main__":
    sys.exit(main())
