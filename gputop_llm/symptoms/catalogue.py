"""All rules, in the order of the bottleneck map."""

from __future__ import annotations

from gputop_llm.symptoms.engine import Rule
from gputop_llm.symptoms.rules import gpu_limits, gpu_work, kv

RULES: tuple[Rule, ...] = (*kv.RULES, *gpu_work.RULES, *gpu_limits.RULES)
