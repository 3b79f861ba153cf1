"""What to do about a symptom or a finding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do. `flags` maps an engine ("vllm", "sglang", "trtllm") to its exact flag or setting."""

    text: str
    flags: Mapping[str, str] = field(default_factory=dict)
