"""From a capture to the script that runs its hot kernels again."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gputop_llm.errors import GputopError
from gputop_llm.rerun import candidates, from_ops, hot, inductor, seen
from gputop_llm.rerun.attach import attach_note
from gputop_llm.rerun.case import Case
from gputop_llm.rerun.hot import HotLaunch
from gputop_llm.rerun.script import script
from gputop_llm.rerun.served import Engine, engine_of, served
from gputop_llm.store import bundle
from gputop_llm.timeline.intervals import clip, length, union
from gputop_llm.timeline.model import Kind
from gputop_llm.timeline.read import read_capture
from gputop_llm.verdict.context import Context


@dataclass(frozen=True)
class Prepared:
    """What will be run.

    Args:
        hot: the kernels that it is about, the hottest first.
        refused: those that can't be run again alone: why, and what to do.
        cases: what may launch them; none where nothing is known (then `notes` say why).
        dtype: the model's, "bf16" where that isn't known.
        engine: the captured one.
        source: the capture's name.
        gpu: what it was taken on; None where it doesn't say.
    """

    hot: tuple[HotLaunch, ...]
    refused: tuple[tuple[HotLaunch, str, str], ...]
    cases: tuple[Case, ...]
    dtype: str
    engine: Engine
    source: str
    notes: tuple[str, ...]
    gpu: str | None = None

    def script(self, name: str) -> str:
        """Its text; `name` is what the file is called.

        Raises:
            GputopError: there is nothing to run.
        """
        if not self.cases:
            raise GputopError("there is nothing to run again", "; ".join(self.notes) or "no operation is known")
        return script(self.hot, self.cases, self.source, name, self.dtype)


def prepare(
    paths: Sequence[Path],
    pattern: re.Pattern[str] | None = None,
    config_file: Path | None = None,
    context: Context | None = None,
) -> Prepared:
    """Reads a capture or a bundle, and finds what may have launched its hot kernels.

    Args:
        paths: of ranks of one run, or of a bundle.
        pattern: only kernels in whose name it is found.
        config_file: the model's config.json, where the capture has none.
        context: of the capture, where it was read already.

    Raises:
        GputopError: the capture can't be read, or it has no such kernel.
    """
    files, _, notes = bundle.expanded(paths)
    frames: Sequence[Mapping[str, Any]] = ()
    engine = Engine()
    if len(paths) == 1 and paths[0].is_dir():
        taken = bundle.read(paths[0])
        frames = list(taken.frames())
        engine = engine_of(taken.capture, taken.environment())
    context = context or Context(read_capture(files))
    found = hot.hot_launches(context, pattern)
    if not found:
        what = f"no kernel matches /{pattern.pattern}/" if pattern is not None else "it has no kernel by itself"
        todo = "a graph replay that was recorded whole hides its kernels: take a window by the native client"
        raise GputopError(f"nothing of {paths[0]} can be run again", what, todo)
    refusals = [(one, hot.refusal(one)) for one in found]
    attach = attach_note(found[0], engine.pid, engine.ranks)
    tried = tuple(one for one, why in refusals if why is None)
    model = served(engine, config_file)
    batches = seen.batches(context, frames)
    cases = list(from_ops.of_record(context, tried, files))
    said = [*notes, *_hidden(context), *([attach] if attach is not None else [])]
    if model.shape is not None:
        families = [one.family for one in tried]
        derived = candidates.of_families(families, model.shape, model.parallel, batches, model.qkv_bias)
        cases += [case for case in derived if case.label not in {one.label for one in cases}]
        said += [f"batch sizes are from {batches.source}", *model.notes]
        if not batches.kv_known and any("attention" in case.needs[0] for case in derived):
            said.append(f"the length of contexts is not known: {batches.kv_tokens} tokens are taken")
    else:
        said.append(f"the model is not known ({model.problem}): name its config.json with --model-config")
    # Last: their buffers are guessed, and after a fault on the GPU no other case runs.
    cases += inductor.cases([one.name for one in tried], batches.tokens, inductor.folders())
    if model.shape is None and not cases:
        said.append("the record has no operators with shapes (`gputop-llm capture --with cpu,shapes` records them)")
    return Prepared(
        hot=tried,
        refused=tuple((one, *why) for one, why in refusals if why is not None),
        cases=tuple(cases),
        dtype=model.shape.dtype if model.shape is not None else "bf16",
        engine=engine,
        source=paths[0].name,
        notes=tuple(said),
        gpu=next((one.name for one in context.timeline.devices if one.number == found[0].device), None),
    )


def _hidden(context: Context) -> list[str]:
    """That graph replays were recorded whole: the kernels in them are unknown, and may be the hottest."""
    main, timeline = context.main, context.timeline
    rows = (timeline.ops.kind == Kind.GRAPH) & (timeline.ops.device == main.device) if main is not None else None
    if main is None or rows is None or not bool(rows.any()):
        return []
    ops = timeline.ops.take(rows)
    share = 100.0 * length(*union(*clip(ops.start, ops.end, timeline.start, timeline.end))) / main.busy_ns
    return [
        f"{share:.0f} % of the GPU's time is graph replays that were recorded whole: for the kernels in them take a "
        "window by the native client (`gputop-llm capture --route native`)"
    ]
