"""SGLang's /start_profile: always there, without a launch flag; with --admin-api-key it needs that key.

Its own defaults are stacks and no bound: everything is said in each request.
"""

from __future__ import annotations

import re
from typing import Any

from gputop_llm.capture.endpoint.kinds import Call, Endpoint, Setup, Wish

_RANK = re.compile(r"-TP-(\d+)")
_STAGES_SINCE = (0, 5, 8)
_STAGES = {"prefill": "EXTEND", "decode": "DECODE"}


def endpoint_of(setup: Setup, wish: Wish) -> Endpoint:
    """How a window is taken of an SGLang."""
    folder = f"/tmp/{wish.tag}"
    body: dict[str, Any] = {
        "output_dir": folder,
        "num_steps": wish.steps,
        "activities": [*(["CPU"] if wish.cpu else []), "GPU", *(["MEM"] if wish.memory else [])],
        "with_stack": wish.stacks,
        "record_shapes": wish.shapes,
    }
    if wish.stage is not None:
        body["profile_by_stage"] = True
        if setup.version is not None and setup.version >= _STAGES_SINCE:
            body["profile_stages"] = [wish.stage]
    wanted = f"-{_STAGES[wish.stage]}" if wish.stage is not None else None
    others = [f"-{name}" for name in _STAGES.values() if wanted is not None and f"-{name}" != wanted]
    return Endpoint(
        engine="sglang",
        folder=folder,
        owned=True,
        tag="",
        start=Call("/start_profile", body),
        stop=Call("/stop_profile"),
        ends_itself=True,
        stop_after=False,
        # A GET would start it.
        probe=None,
        rank=_RANK,
        not_a_rank=re.compile("|".join(others)) if others else None,
    )
