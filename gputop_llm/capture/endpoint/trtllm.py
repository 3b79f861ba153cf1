"""trtllm-serve's /start_profile and /stop_profile (since May 2026). Older ones have only environment variables."""

from __future__ import annotations

import re

from gputop_llm.capture.endpoint.kinds import Call, Endpoint, Setup, Wish

_RANK = re.compile(r"-rank-(\d+)")


def endpoint_of(setup: Setup, wish: Wish) -> Endpoint:
    """How a window is taken of a trtllm-serve; whether it has the endpoint only the probe tells."""
    del setup
    folder = f"/tmp/{wish.tag}"
    activities = [*(["CPU"] if wish.cpu else []), "GPU"]
    return Endpoint(
        engine="trtllm",
        folder=folder,
        owned=True,
        tag="",
        start=Call("/start_profile", {"output_dir": folder, "num_steps": wish.steps, "activities": activities}),
        stop=Call("/stop_profile"),
        ends_itself=True,
        stop_after=False,
        probe="/start_profile",
        rank=_RANK,
    )
