"""A stand-in for the module `pynvml` that answers with what real GPUs answered.

Fed from recorded JSON: an H200's full record (captures/h200/nvml_*.json) or a field case
(captures/field-cases/*/nvml*.json). It raises pynvml's own exceptions, hands out and fills
pynvml's own structures, and counts every call.

    fake = FakeNvml.from_h200(CAPTURES / "h200" / "nvml_idle.json", copies=8)
    source = NvmlSource(lib=fake, clock=clock)
    fake.advance()                      # the next recording or tick
    fake.fail("PowerUsage", 999)        # nvmlDeviceGetPowerUsage raises NVML_ERROR_UNKNOWN from now on
    fake.calls["nvmlDeviceGetName"]     # how often it was called
"""

from __future__ import annotations

import ast
import ctypes
import json
import threading
from collections import Counter, deque
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pynvml

CAPTURES = Path(__file__).parents[2] / "captures"
CASES = CAPTURES / "field-cases"

_NOT_SUPPORTED, _NOT_FOUND, _TIMEOUT, _LOST, _UNINITIALIZED = 3, 6, 10, 15, 1
_GPM_NAMES = {value: name for name, value in vars(pynvml).items() if name.startswith("NVML_GPM_METRIC_")}
_CLOCK_NAMES = {0: "GRAPHICS", 1: "SM", 2: "MEM", 3: "VIDEO"}


class FakeNvml(ModuleType):
    """One machine's NVML.

    Args:
        devices: per GPU, the recorded answers; `ticks` inside holds what differs from poll to poll.
        system: driver, cuda, nvml, and optionally `init` with the code that nvmlInit returns.
    """

    def __init__(self, devices: list[dict[str, Any]], system: dict[str, Any] | None = None) -> None:
        super().__init__("pynvml")
        self.devices = devices
        self.system = system or {}
        self.calls: Counter[str] = Counter()
        self.refusals: Counter[tuple[Any, ...]] = Counter()
        """(function, GPU, arguments, code) → how often it was answered with that code."""
        self.tick = 0
        self.inits = 0
        self.initialised = False
        self.registered: set[int] = set()
        self.live_samples: dict[int, int | None] = {}
        self._failures: dict[tuple[str, int | None], tuple[int, list[int] | None]] = {}
        self._hangs: dict[str, threading.Event] = {}
        self.hanging = threading.Event()
        """Set once a call hangs."""
        self._events: deque[tuple[int, int]] = deque()
        self._next = 0x1000

    # --- where the answers come from ---------------------------------------------------------

    @classmethod
    def from_h200(cls, *records: Path, copies: int = 1) -> FakeNvml:
        """One or more recordings of the H200, one per tick, on `copies` identical GPUs."""
        pages = [json.loads(path.read_text(encoding="utf-8")) for path in records]
        return cls([{**pages[0], "ticks": list(pages)} for _ in range(copies)], pages[0])

    @classmethod
    def from_case(cls, case: str | Path, file: str = "nvml.json") -> FakeNvml:
        """A field case by the beginning of its folder's name ("05") or by path."""
        folder = case if isinstance(case, Path) else next(CASES.glob(f"{case}*"))
        page = json.loads((folder / file).read_text(encoding="utf-8"))
        devices = page.get("devices") or ([page["device"]] if "device" in page else [])
        if "ticks" in page:
            devices = [{**device, "ticks": page["ticks"]} for device in devices]
        system = {"driver": page.get("driver", "550.90.07"), "cuda": 12040, "init": page.get("init")}
        system["nvml"] = f"12.{page.get('library', system['driver'])}"
        return cls(devices, system)

    def advance(self, ticks: int = 1) -> None:
        """Moves on to the next recording or tick; the last one stays."""
        self.tick += ticks

    # --- what a test can do to it --------------------------------------------------------------

    def set(self, key: str, value: Any, gpu: int = 0) -> None:
        """Answers `key` ("PowerUsage") with `value` from now on, on every tick; {"error": code} raises."""
        self.devices[gpu].setdefault("set", {})[key] = value

    def set_field(self, field: int, value: int, gpu: int = 0, bits: int = 64, error: int = 0) -> None:
        """Answers a field value (by its number), as a 32- or 64-bit counter, or with an error code."""
        self.devices[gpu].setdefault("fields", {})[field] = (error, value, bits)

    def fail(self, call: str, code: int, gpu: int | None = None, times: int | None = None) -> None:
        """Makes a call ("PowerUsage" or a full function name) fail; with `times` only so often."""
        self._failures[(_full(call), gpu)] = (code, None if times is None else [times])

    def heal(self, call: str, gpu: int | None = None) -> None:
        """Takes a `fail` back."""
        self._failures.pop((_full(call), gpu), None)

    def hang(self, call: str) -> threading.Event:
        """Makes a call hang until the returned event is set."""
        self._hangs[_full(call)] = threading.Event()
        return self._hangs[_full(call)]

    def lose(self, gpu: int) -> None:
        """The GPU falls off the bus: every call on it answers GPU_IS_LOST."""
        self.devices[gpu]["lost"] = True

    def find(self, gpu: int) -> None:
        """The lost GPU is back (after the next initialisation)."""
        self.devices[gpu]["lost"] = False

    def unload_driver(self, init_code: int | None = 9) -> None:
        """Handles die; initialising fails with `init_code` (None: works again, as after a reload)."""
        self.initialised = False
        self.system["init"] = None if init_code is None else {"error": init_code}

    def emit_xid(self, xid: int, gpu: int = 0) -> None:
        """The driver reports an Xid error."""
        self._events.append((gpu, xid))

    def refused(self, code: int = _NOT_SUPPORTED) -> dict[tuple[Any, ...], int]:
        """How often each call was answered with `code`."""
        return {key[:-1]: times for key, times in self.refusals.items() if key[-1] == code}

    # --- pynvml's interface ----------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        real = getattr(pynvml, name)  # AttributeError for what pynvml does not have either
        if not name.startswith("nvml") or not callable(real):
            return real
        if name.startswith("nvmlDeviceGet"):
            return lambda handle, *args: self._device(name, handle, *args)
        raise AssertionError(f"FakeNvml does not know {name}")

    def nvmlInit(self) -> None:
        self._count("nvmlInit")
        if self.system.get("init"):
            raise pynvml.NVMLError(self.system["init"]["error"])
        self.inits += 1
        self.initialised = True

    def nvmlShutdown(self) -> None:
        self._count("nvmlShutdown")
        self._alive()
        self.initialised = False

    def nvmlSystemGetNVMLVersion(self) -> str:
        return str(self.system["nvml"])

    def nvmlSystemGetDriverVersion(self) -> str:
        self._alive()
        return str(self.system["driver"])

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        self._alive()
        return int(self.system["cuda"])

    def nvmlDeviceGetCount(self) -> int:
        self._count("nvmlDeviceGetCount")
        self._alive()
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        self._enter("nvmlDeviceGetHandleByIndex", index)
        return _pointer(pynvml.c_nvmlDevice_t, 0x10 + index)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: int) -> Any:
        parent = _number(handle) - 0x10
        self._enter("nvmlDeviceGetMigDeviceHandleByIndex", parent)
        if index >= len(self.devices[parent].get("mig", ())):
            raise pynvml.NVMLError(_NOT_FOUND)
        return _pointer(pynvml.c_nvmlDevice_t, 0x10000 + 0x100 * parent + index)

    def nvmlDeviceGetFieldValues(self, handle: Any, keys: list[Any]) -> Any:
        gpu, page = self._page(handle)
        self._enter("nvmlDeviceGetFieldValues", gpu)
        items = (pynvml.c_nvmlFieldValue_t * len(keys))()
        for item, key in zip(items, keys, strict=True):
            item.fieldId, item.scopeId = key if isinstance(key, tuple) else (key, 0)
            error, value, bits = _field(page, item.fieldId)
            item.nvmlReturn, item.value.ullVal = error, value
            item.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT if bits == 32 else 3
            if error:
                self.refusals[("nvmlDeviceGetFieldValues", gpu, item.fieldId, error)] += 1
        return items

    def nvmlEventSetCreate(self) -> Any:
        self._enter("nvmlEventSetCreate", None)
        return _pointer(pynvml.c_nvmlEventSet_t, 0x99)

    def nvmlDeviceRegisterEvents(self, handle: Any, kinds: int, events: Any) -> None:
        gpu, _ = self._page(handle)
        self._enter("nvmlDeviceRegisterEvents", gpu)
        assert kinds == pynvml.nvmlEventTypeXidCriticalError
        assert _number(events) == 0x99
        self.registered.add(gpu)

    def nvmlEventSetWait_v2(self, events: Any, timeout_ms: int) -> Any:
        self._enter("nvmlEventSetWait_v2", None)
        assert timeout_ms == 0, "a poll never waits"
        if not self._events:
            raise pynvml.NVMLError(_TIMEOUT)
        gpu, xid = self._events.popleft()
        event = pynvml.c_nvmlEventData_t()
        event.device = _pointer(pynvml.c_nvmlDevice_t, 0x10 + gpu)
        event.eventType, event.eventData = pynvml.nvmlEventTypeXidCriticalError, xid
        return event

    def nvmlEventSetFree(self, events: Any) -> None:
        self._count("nvmlEventSetFree")

    def nvmlGpmQueryDeviceSupport(self, handle: Any) -> Any:
        gpu, page = self._page(handle)
        self._enter("nvmlGpmQueryDeviceSupport", gpu)
        return SimpleNamespace(isSupportedDevice=page.get("gpm_supported", 0))

    def nvmlGpmSampleAlloc(self) -> Any:
        self._enter("nvmlGpmSampleAlloc", None)
        self._next += 1
        self.live_samples[self._next] = None
        return _pointer(pynvml.c_nvmlGpmSample_t, self._next)

    def nvmlGpmSampleFree(self, sample: Any) -> None:
        self._count("nvmlGpmSampleFree")
        del self.live_samples[_number(sample)]

    def nvmlGpmSampleGet(self, handle: Any, sample: Any) -> Any:
        gpu, _ = self._page(handle)
        self._enter("nvmlGpmSampleGet", gpu)
        self.live_samples[_number(sample)] = self.calls["nvmlGpmSampleGet"] * 1000 + gpu
        return sample

    def nvmlGpmMetricsGet(self, request: Any) -> Any:
        self._enter("nvmlGpmMetricsGet", None)
        before, after = (self.live_samples[_number(sample)] for sample in (request.sample1, request.sample2))
        if request.version != 1 or before is None or after is None or before >= after:
            raise pynvml.NVMLError(2)
        page = self._merged(after % 1000)
        for metric in request.metrics[: request.numMetrics]:
            metric.nvmlReturn, metric.value = page["gpm"].get(_GPM_NAMES[metric.metricId], (_NOT_SUPPORTED, 0.0))[:2]
        return request

    # --- inside ----------------------------------------------------------------------------------

    def _device(self, name: str, handle: Any, *args: Any) -> Any:
        gpu, page = self._page(handle)
        self._enter(name, gpu)
        answer = _answer(page, name.removeprefix("nvmlDeviceGet"), args)
        code = _code(answer)
        if code:
            self.refusals[(name, gpu, args if name != "nvmlDeviceGetProcessUtilization" else (), code)] += 1
            raise pynvml.NVMLError(code)
        return answer

    def _enter(self, name: str, gpu: int | None) -> None:
        self._count(name)
        if name in self._hangs:
            self.hanging.set()
            self._hangs[name].wait()
        self._alive()
        for key in ((name, gpu), (name, None)):
            code, left = self._failures.get(key, (0, None))
            if code and (left is None or left[0] > 0):
                if left is not None:
                    left[0] -= 1
                self.refusals[(name, gpu, (), code)] += 1
                raise pynvml.NVMLError(code)
        if gpu is not None and gpu < len(self.devices) and self.devices[gpu].get("lost"):
            raise pynvml.NVMLError(_LOST)

    def _count(self, name: str) -> None:
        self.calls[name] += 1

    def _alive(self) -> None:
        if not self.initialised:
            raise pynvml.NVMLError(_UNINITIALIZED)

    def _page(self, handle: Any) -> tuple[int, dict[str, Any]]:
        number = _number(handle)
        if number >= 0x10000:
            parent, index = divmod(number - 0x10000, 0x100)
            instances = self.devices[parent]["mig"]
            if index >= len(instances):
                raise pynvml.NVMLError(28)
            return parent, instances[index]
        return number - 0x10, self._merged(number - 0x10)

    def _merged(self, gpu: int) -> dict[str, Any]:
        device = self.devices[gpu]
        ticks = device.get("ticks")
        now = ticks[min(self.tick, len(ticks) - 1)] if ticks else {}
        return {**device, **now, **device.get("set", {})}


def _answer(page: dict[str, Any], key: str, args: tuple[Any, ...]) -> Any:
    """The recorded answer in the shape in which pynvml gives it."""
    if key == "MemoryInfo":
        value = page.get("MemoryInfo_v2" if args else "MemoryInfo")
    elif key in ("ClockInfo", "MaxClockInfo"):
        short = "Clock" if key == "ClockInfo" else "MaxClock"
        value = page.get(f"{key}_{_CLOCK_NAMES[args[0]]}", page.get(f"{short}{args[0]}"))
    elif key == "TotalEccErrors":
        value = page.get(key, page.get(f"Ecc{args[0]}{args[1]}"))
    elif key in ("TemperatureThreshold", "NvLinkState"):
        value = page.get(f"{'TempThr' if key == 'TemperatureThreshold' else 'NvLink'}{args[0]}")
    elif key == "P2PStatus":
        value = page.get(key, {}).get({0: "read", 2: "nvlink"}[args[1]])
    elif key == "ProcessUtilization":
        value = page.get("ProcUtil")
    elif key == "PciInfo":
        value = {"busId": page["PciBusId"]} if "PciBusId" in page else None
    elif key == "MaxMigDeviceCount":
        value = 7 if "mig" in page else None
    else:
        value = page.get(key)
    if key.endswith("RunningProcesses") and isinstance(value, list):
        return [_process(item) for item in value]
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [SimpleNamespace(**item) for item in value]
    if isinstance(value, dict) and "error" not in value:
        return SimpleNamespace(**value)
    return {"error": _NOT_SUPPORTED} if value is None else value


def _process(item: Any) -> Any:
    """A process as pynvml lists it; the H200's records hold its printed form."""
    if isinstance(item, str):
        item = ast.literal_eval(item)
    item = {"gpuInstanceId": 0xFFFFFFFF, "computeInstanceId": 0xFFFFFFFF, **item}
    return SimpleNamespace(**item)


def _code(answer: Any) -> int:
    """The error code that a recorded answer stands for, 0 if it is none."""
    if isinstance(answer, dict):
        return int(answer["error"])
    if isinstance(answer, str) and answer.startswith("ERR NVMLError_"):
        return int(getattr(pynvml, answer.removeprefix("ERR ").partition(":")[0])().value)
    return 0


def _field(page: dict[str, Any], field: int) -> tuple[int, int, int]:
    if field in page.get("fields", {}):
        return tuple(page["fields"][field])  # type: ignore[return-value]
    for name, value in page.items():
        if name.startswith("FI:") and getattr(pynvml, name[3:]) == field:
            return value[0], value[1], 64
    return _NOT_SUPPORTED, 0, 64


def _full(call: str) -> str:
    return call if call.startswith("nvml") else f"nvmlDeviceGet{call}"


def _pointer(kind: Any, number: int) -> Any:
    return ctypes.cast(ctypes.c_void_p(number), kind)


def _number(pointer: Any) -> int:
    return ctypes.cast(pointer, ctypes.c_void_p).value or 0
