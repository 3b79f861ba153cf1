"""What the rules cost per tick, over one hour of a node with eight GPUs and four engines.

    python benchmarks/rules.py [--seconds 3600] [--json FILE] [--profile]

Frames are generated, as a session would make them; every one goes into the history and is judged as in a session
(rules, baselines, grouping, trends, log). Measured is the judging alone, in CPU time of its thread; of the first two
minutes, while the history fills, nothing is counted. Twice: a healthy node, and one where most rules say something.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import logging
import math
import pstats
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from gputop_llm.config import Config
from gputop_llm.diagnosis import Diagnosis
from gputop_llm.model import Frame, Gpm, Host, TargetList
from gputop_llm.sampling.history import History
from tests.support.symptom_frames import busy, latency

ENGINES, GPUS_EACH = 4, 2
WARM_S = 120
TARGET_MS = 2.0
_PIDS_APART = 1000


def healthy(s: int) -> dict[str, Any]:
    """What moves on a healthy node."""
    swing = 1.0 + 0.3 * math.sin(s / 40.0) + 0.05 * math.sin(s / 3.1)
    return {
        "live": {"running": round(64 * swing), "generation_tokens_per_s": 3200 * swing, "kv_usage_pct": 40 * swing},
        "lat": {"itl": latency(0.026 * (0.9 + 0.1 * swing), count=32_000), "ttft": latency(0.2 * swing)},
        "gpu": {"gpm.sm_active_pct": 70 + 10 * swing, "power_w": 450 * swing},
    }


def troubled(s: int) -> dict[str, Any]:
    """Full KV cache, slow tokens, a busy host thread, a capped GPU: most rules have something to say."""
    moving = healthy(s)
    return {
        "live": {**moving["live"], "kv_usage_pct": 99.0, "waiting": 20.0 + s % 300, "preemptions_per_s": 2.0},
        "lat": {"itl": latency(0.3, count=32_000), "ttft": latency(4.0), "queue": latency(3.0)},
        "gpu": {"util_pct": 98.0, "gpm.sm_active_pct": 30.0, "sm_clock_mhz": 900.0, "gpm.dram_bw_pct": 20.0},
        "load": {pid: {"main_thread_pct": 99.0} for pid in (624, 640, 641)},
    }


def node(load: Any, s: int) -> Frame:
    """One frame with four engines on two GPUs each."""
    frames = [_moved(busy(1, gpus=GPUS_EACH, start=s, **load(s + 17 * k))[0], k) for k in range(ENGINES)]
    gpus = tuple(g for f in frames if f.gpus.value for g in f.gpus.value.gpus)
    processes = tuple(p for f in frames if f.host.value for p in f.host.value.processes)
    targets = tuple(t for f in frames if f.targets.value for t in f.targets.value.targets)
    first = frames[0]
    assert first.gpus.value is not None
    return replace(
        first,
        gpus=replace(first.gpus, value=replace(first.gpus.value, gpus=gpus)),
        host=replace(first.host, value=replace(first.host.value or Host(), processes=processes)),
        targets=replace(first.targets, value=TargetList(targets)),
        engines=tuple(f.engines[0] for f in frames),
    )


def _moved(frame: Frame, k: int) -> Frame:
    """The same engine as the k-th of the node: other GPUs, PIDs and address."""
    shift = k * _PIDS_APART

    def gpu(one: Any) -> Any:
        processes = tuple(replace(p, pid=p.pid + shift) for p in one.processes or ())
        gpm = None if one.gpm is None else Gpm(**{name: getattr(one.gpm, name) for name in Gpm.__dataclass_fields__})
        return replace(one, index=one.index + GPUS_EACH * k, uuid=f"GPU-{k}-{one.index}", processes=processes, gpm=gpm)

    def process(one: Any) -> Any:
        return replace(
            one,
            pid=one.pid + shift,
            ppid=(one.ppid or 0) + shift,
            nvml_pid=None if one.nvml_pid is None else one.nvml_pid + shift,
            gpus=tuple(g + GPUS_EACH * k for g in one.gpus),
        )

    gpus, host, targets = frame.gpus.value, frame.host.value, frame.targets.value
    assert gpus is not None
    assert host is not None
    assert targets is not None
    key, url = f"{k}-{targets.targets[0].key}", f"http://127.0.0.1:{8000 + k}"
    target = targets.targets[0]
    target = replace(target, key=key, urls=(url,), processes=tuple(process(p) for p in target.processes))
    return replace(
        frame,
        gpus=replace(frame.gpus, value=replace(gpus, gpus=tuple(gpu(g) for g in gpus.gpus))),
        host=replace(
            frame.host, value=replace(host, processes=tuple(replace(p, pid=p.pid + shift) for p in host.processes))
        ),
        targets=replace(frame.targets, value=TargetList((target,))),
        engines=tuple(replace(e, target_key=key, url=url) for e in frame.engines),
    )


def measure(load: Any, seconds: int, profile: cProfile.Profile | None) -> dict[str, float]:
    """Milliseconds per tick, and what was raised at the end."""
    history = History()
    judge = Diagnosis(Config(), history, "benchmark")
    took_ms: list[float] = []
    frame = None
    for frame in _frames(load, seconds):
        history.append(frame)
        if profile is not None and len(took_ms) >= WARM_S:
            profile.enable()
        began = time.thread_time()
        frame = judge.of(frame)
        took_ms.append(1000.0 * (time.thread_time() - began))
        if profile is not None:
            profile.disable()
    judge.close(1.0)
    assert frame is not None
    assert frame.symptoms is not None
    counted = sorted(took_ms[WARM_S:])
    return {
        "mean_ms": statistics.fmean(counted),
        "median_ms": statistics.median(counted),
        "p99_ms": counted[int(0.99 * (len(counted) - 1))],
        "max_ms": counted[-1],
        "raised": len(frame.symptoms.active),
        "cant_tell": len(frame.symptoms.cant_tell),
    }


def _frames(load: Any, seconds: int) -> Iterator[Frame]:
    return (node(load, s) for s in range(seconds))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=3600)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    options = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    profile = cProfile.Profile() if options.profile else None
    found = {load.__name__: measure(load, max(options.seconds, WARM_S + 10), profile) for load in (healthy, troubled)}
    for name, figures in found.items():
        print(
            f"{name:9} mean {figures['mean_ms']:.2f} ms, median {figures['median_ms']:.2f} ms, "
            f"p99 {figures['p99_ms']:.2f} ms, max {figures['max_ms']:.2f} ms per tick "
            f"({figures['raised']:.0f} raised, {figures['cant_tell']:.0f} can't tell); to reach: {TARGET_MS} ms"
        )
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(35)
    return 0 if all(figures["mean_ms"] <= TARGET_MS for figures in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
