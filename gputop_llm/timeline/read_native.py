"""Reads native capture records (`native_format`): what our client recorded inside the target, one file per process.

Several files become one timeline, joined by CLOCK_REALTIME, which the processes of one node share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gputop_llm.errors import GputopError
from gputop_llm.timeline import native_format as form
from gputop_llm.timeline.builder import NO_WORK, TimelineBuilder
from gputop_llm.timeline.model import Origin, Timeline
from gputop_llm.timeline.native_chunks import MAX_BYTES
from gputop_llm.timeline.native_devices import NativeDevices
from gputop_llm.timeline.native_record import NativeRecord
from gputop_llm.timeline.stack_samples import with_samples
from gputop_llm.timeline.unpack import shown, unpacked

_MISSING = {
    "cpu_ops": "a native window records no framework operators: a Kineto window does",
    "ranges": "a native window records no annotated ranges",
    "os_waits": "a native window records no OS waits",
    "device_names": "the record has no table of GPUs",
}


def read_native(
    paths: Sequence[Path],
    progress: Callable[[float], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Timeline:
    """One timeline of one or several records, plain or compressed (.gz, .xz); a cut one gives what is whole.

    Python stacks that were sampled meanwhile, and lie beside a record, are joined to its threads.

    `progress` gets the share that is done, 0 to 1. A record without GPU work still gives a timeline, with no ops and
    the reason in `origin.missing["device_activity"]`.

    Raises:
        GputopError: a file can't be read, is no record or holds no window, is too large; records share no moment; or
            `cancelled` said yes.
    """
    stop = cancelled or (lambda: False)
    builder = TimelineBuilder()
    devices = NativeDevices()
    records: list[NativeRecord] = []
    idle: list[NativeRecord] = []
    for position, path in enumerate(paths):

        def share(done: float, position: int = position) -> None:
            if progress is not None:
                progress((position + done) / len(paths))

        with unpacked(path, lambda done, share=share: share(done / 2), stop, MAX_BYTES) as plain:  # type: ignore[misc]
            record = NativeRecord(plain, path, position if len(paths) > 1 else None, stop)
            before = len(builder.ops)
            record.read(builder, devices, lambda done, share=share: share(0.5 + done / 2))  # type: ignore[misc]
            records.append(record)
            if len(builder.ops) == before:
                idle.append(record)
    return with_samples(_joined(records, idle, builder, devices), paths)


def _joined(
    records: Sequence[NativeRecord], idle: Sequence[NativeRecord], builder: TimelineBuilder, devices: NativeDevices
) -> Timeline:
    start, end = max(record.window[0] for record in records), min(record.window[1] for record in records)
    if start >= end:
        if len(records) > 1:
            raise GputopError(
                "cannot put the records on one clock",
                f"{shown(records[0].label)} and the others share no moment",
                "give records that were taken at the same time, or one at a time",
            )
        raise GputopError(f"cannot read {shown(records[0].label)}", "its window is empty", "take the capture again")
    warnings = []
    if devices.ambiguous:
        shared = ", ".join(map(str, sorted(devices.ambiguous)))
        warnings.append(
            f"several processes name a GPU {shared}, and the record does not tell whether that is the same one"
        )
    for record in records:
        name = f"{shown(Path(record.label.name))}: " if len(records) > 1 else ""
        if len(records) > 1 and record in idle:
            warnings.append(name + NO_WORK)
        warnings += [name + text for text in record.warnings()]
    builder.devices += devices.devices()
    return builder.build(
        Origin(
            format="native",
            files=tuple(str(record.label) for record in records),
            tool=", ".join(dict.fromkeys(record.tool for record in records)),
            schema=str(form.VERSION),
            window_from="record" if all(record.whole for record in records) else "activity",
            node_level=any(record.node_level for record in records),
            warnings=tuple(warnings),
            missing=_missing(builder, records),
        ),
        start,
        end,
    )


def _missing(builder: TimelineBuilder, records: Sequence[NativeRecord]) -> dict[str, str]:
    missing: dict[str, Any] = dict(_MISSING)
    calls = form.Kinds.RUNTIME | form.Kinds.DRIVER
    if not all(record.kinds & calls for record in records):
        missing["launches"] = missing["calls"] = "the window did not record API calls"
    elif not len(builder.calls):
        missing["launches"] = missing["calls"] = "no CUDA API call was made in the window"
    if not len(builder.ops):
        missing["device_activity"] = (
            "the process launched nothing in the window, or its records were lost"
            if len(builder.calls)
            else "the process did nothing with CUDA in the window"
        )
    return missing
