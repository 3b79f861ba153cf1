"""Runs inside the target: one bounded window of torch.profiler by its low-level calls, on a thread of its own.

Or one bounded range of CUDA's (cudaProfilerStart) that an nsys outside waits for.

Needs nothing but the standard library and the torch that the target has loaded; imports neither torch nor gputop-llm,
starts no thread, changes nothing of the target's Python. It talks by lines of JSON over two descriptors:

    says   {"say": "hello", ...}              what is here; or "refused" with "why", and that was all
    hears  {"start_at", "window_ns"}          CLOCK_MONOTONIC, ns. Then anything, or the end, means: stop
    says   {"say": "started"} {"say": "ended"} with its times
    says   {"say": "saved", "fd", "bytes"}    the trace, open for reading; its file is unlinked already. Not of a range
    hears  anything, or the end               it was read

Where the other side goes away, the window ends at once and nothing is saved.
"""

# No `from __future__`, and nothing newer than Python 3.8: a target may be older than the monitor.
import json
import os
import select
import sys
import time
from typing import Any

COMMAND_WITHIN_S = 30.0
READ_WITHIN_S = 60.0
#: The dead-man bound: whatever was ordered, it is over then.
LONGEST_S = 10.0
START_WITHIN_S = 10.0
#: Room that must be free where the trace is written, bytes.
ROOM_BYTES = 1 << 30
PLACES = ("/tmp", "/var/tmp", "/dev/shm")
PREFIX, TRACE = "gputop-llm-trace-", "trace.json"


class Refusal(Exception):
    """Nothing was done to the target, and why."""


class Line:
    """The two descriptors."""

    def __init__(self, commands: int, records: int) -> None:
        self.commands, self.records = commands, records

    def say(self, word: str, **more: Any) -> None:
        """Says a line; OSError when nobody listens."""
        os.write(self.records, json.dumps(dict(more, say=word)).encode("ascii") + b"\n")

    def heard(self, until_ns: int) -> "bytes | None":
        """What comes until then: bytes, b"" for the other side's end, None for nothing."""
        left_ms = max(0.0, (until_ns - time.monotonic_ns()) / 1e6)
        # Not select: an engine has more descriptors than that can name.
        ready = select.poll()
        ready.register(self.commands, select.POLLIN)
        if not ready.poll(left_ms):
            return None
        try:
            return os.read(self.commands, 4096)
        except OSError:
            return b""


class Profiler:
    """torch's profiler as this torch has it.

    Args:
        options: `cpu`, `shapes`, `memory`, `stacks`: true or false.
    """

    def __init__(self, options: "dict[str, bool]") -> None:
        torch: Any = sys.modules.get("torch")
        native = getattr(torch, "_C", None)
        self.calls: Any = getattr(native, "_autograd", None)
        kinds: Any = getattr(native, "_profiler", None)
        if self.calls is None or kinds is None:
            raise Refusal("torch is not loaded in the process")
        if not self.calls.kineto_available():
            raise Refusal("its torch was built without Kineto")
        front = sys.modules.get("torch.autograd.profiler")
        if self.calls._profiler_enabled() or getattr(front, "_is_profiler_enabled", False):
            raise Refusal("torch.profiler is collecting in the process already")
        self.version = str(torch.__version__)
        supported = self.calls._supported_activities()
        activity = kinds.ProfilerActivity
        self.gpu = activity.CUDA in supported
        self.cpu = bool(options.get("cpu")) or not self.gpu
        experimental = kinds._ExperimentalConfig()
        if self.cpu:
            # Without it, operators of this thread alone are recorded: there are none.
            try:
                experimental = kinds._ExperimentalConfig(profile_all_threads=True)
            except TypeError:
                raise Refusal(
                    "torch " + self.version + " records operators of the calling thread only (2.7 and later: of all)"
                ) from None
        self.activities = {one for one, wanted in ((activity.CPU, self.cpu), (activity.CUDA, self.gpu)) if wanted}
        wanted = [bool(options.get(name)) for name in ("shapes", "memory", "stacks")]
        first = (kinds.ProfilerState.KINETO, *wanted, False, False, experimental)
        try:
            self.config = kinds.ProfilerConfig(*first, "gputop-llm")
        except TypeError:
            self.config = kinds.ProfilerConfig(*first)

    def prepare(self) -> None:
        """Takes what it needs; must be followed by `begin`."""
        self.calls._prepare_profiler(self.config, self.activities)

    def begin(self) -> None:
        """Begins to collect."""
        self.calls._enable_profiler(self.config, self.activities)

    def end(self) -> Any:
        """Ends it; gives the result. Holds the interpreter's lock while it sorts its events."""
        return self.calls._disable_profiler()


class Range:
    """From cudaProfilerStart to cudaProfilerStop, for all of the process; in the CUDA context that it has already."""

    version, gpu, cpu = "", True, False

    def __init__(self) -> None:
        import ctypes

        with open("/proc/self/maps") as maps:
            paths = sorted({line.split(None, 5)[5].strip() for line in maps if "/libcudart.so" in line})
        try:
            # None of them is loaded anew.
            driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOW | os.RTLD_NOLOAD)
            self.runtime = ctypes.CDLL(paths[0], mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        except (OSError, IndexError):
            raise Refusal("CUDA's runtime (libcudart) is not loaded in the process") from None
        count, flags, active = ctypes.c_int(), ctypes.c_uint(), ctypes.c_int()
        driver.cuDeviceGetCount(ctypes.byref(count))
        for self.device in range(count.value):
            failed = driver.cuDevicePrimaryCtxGetState(self.device, ctypes.byref(flags), ctypes.byref(active))
            if not failed and active.value:
                return
        raise Refusal("the process has no CUDA context")

    def prepare(self) -> None:
        """A new thread is at device 0, where the next call would make a context."""
        self._called("cudaSetDevice", self.device)

    def begin(self) -> None:
        """Begins it."""
        self._called("cudaProfilerStart")

    def end(self) -> bool:
        """Ends it; what an nsys does then takes this thread's time only."""
        self._called("cudaProfilerStop")
        return True

    def _called(self, name: str, *arguments: int) -> None:
        # ctypes lets go of the interpreter's lock meanwhile.
        code = getattr(self.runtime, name)(*arguments)
        if code:
            raise RuntimeError(name + " failed with " + str(code))


def folder_for_trace() -> str:
    """A new folder that only this user may enter, where there is room; OSError where there is none."""
    failure = OSError("no folder has room for a trace")
    for place in (os.environ.get("TMPDIR") or PLACES[0],) + PLACES:  # noqa: RUF005 - Python 3.8
        try:
            room = os.statvfs(place)
            if room.f_bavail * room.f_frsize < ROOM_BYTES:
                continue
            path = os.path.join(place, PREFIX + str(os.getpid()) + "-" + os.urandom(6).hex())
            os.mkdir(path, 0o700)
        except OSError as error:
            failure = error
        else:
            return path
    raise failure


def saved(result: Any) -> "tuple[int, int]":
    """A descriptor of the trace, whose file is gone again, and its size in bytes."""
    folder = folder_for_trace()
    path = os.path.join(folder, TRACE)
    try:
        result.save(path)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    finally:
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
        os.rmdir(folder)
    return fd, os.fstat(fd).st_size


def window(line: Line, profiler: "Profiler | Range", start_at: int, window_ns: int) -> Any:
    """Takes it; gives the result, or None when the other side has gone away."""
    window_ns = min(window_ns, int(LONGEST_S * 1e9))
    start_at = min(start_at, time.monotonic_ns() + int(START_WITHIN_S * 1e9))
    times = [time.monotonic_ns()]
    profiler.prepare()
    times.append(time.monotonic_ns())
    word = line.heard(start_at)
    began = time.monotonic_ns()
    profiler.begin()
    try:
        if word is None:
            line.say("started", began_ns=began, preparing_ms=(times[1] - times[0]) / 1e6)
            word = line.heard(began + window_ns)
    except OSError:
        word = b""
    finally:
        ended = time.monotonic_ns()
        result = profiler.end()
    if word == b"":
        return None
    line.say("ended", ended_ns=ended, ending_ms=(time.monotonic_ns() - ended) / 1e6, stopped=word is not None)
    return result


def serve(line: Line, options: "dict[str, bool]") -> None:
    """One window, from hello to the end."""
    profiler = Range() if options.get("range") else Profiler(options)
    line.say(
        "hello",
        torch=profiler.version,
        python=".".join(map(str, sys.version_info[:3])),
        pid=os.getpid(),
        gpu=profiler.gpu,
        cpu=profiler.cpu,
    )
    order = line.heard(time.monotonic_ns() + int(COMMAND_WITHIN_S * 1e9))
    if not order:
        return
    told = json.loads(order.decode("ascii"))
    result = window(line, profiler, int(told["start_at"]), int(told["window_ns"]))
    if result is None or isinstance(profiler, Range):
        return
    began = time.monotonic_ns()
    fd, size = saved(result)
    try:
        line.say("saved", fd=fd, bytes=size, saving_ms=(time.monotonic_ns() - began) / 1e6)
        # Freed here, before anybody waits: the longest hold of the interpreter's lock is over with it.
        del result
        line.heard(time.monotonic_ns() + int(READ_WITHIN_S * 1e9))
    finally:
        os.close(fd)


def run(commands: int, records: int, options: str) -> None:
    """All of it; nothing is raised into the target."""
    line = Line(commands, records)
    try:
        try:
            serve(line, json.loads(options))
        except Refusal as refusal:
            line.say("refused", why=str(refusal))
        except Exception as error:  # noqa: BLE001 - whoever waits must be told
            line.say("failed", why=type(error).__name__ + ": " + str(error)[:300])
    except OSError:
        pass


if __name__ == "gputop_llm_agent":
    run(commands_fd, records_fd, options)  # type: ignore[name-defined]  # noqa: F821 - runner.c puts them there
