"""NVLink of one GPU: traffic and errors, only where a link is up (GPM's counters read 0 without one)."""

from __future__ import annotations

from collections.abc import Mapping

from gputop_llm.model.gpu import Gpm
from gputop_llm.sources.nvml_ask import Asker
from gputop_llm.sources.nvml_errors import INVALID_ARGUMENT, NOT_SUPPORTED
from gputop_llm.sources.nvml_fields import (
    NVLINK_ERRORS,
    NVLINK_RX_KIB,
    NVLINK_TX_KIB,
    CounterRate,
    FieldKey,
    FieldReader,
    FieldValue,
)

NO_LINK = "this GPU has no active NVLink"
_LOOK_AGAIN_S = 30.0
_ERRORS_EVERY_S = 5.0
_MAX_LINKS = 18
_KIB = 1024.0


class NvlinkReader:
    """Rates from the driver's counters over all links (in KiB), else from GPM; errors summed over links and kinds."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        self._tx = CounterRate()
        self._rx = CounterRate()
        self._errors: int | None = None
        self._errors_at_s = float("-inf")
        self._active: int | None = None
        self._look_at_s = float("-inf")

    @property
    def absent(self) -> bool:
        """True when it is known that no link is up."""
        return self._active == 0

    def fields(self, now_s: float) -> tuple[FieldKey, ...]:
        """The fields to ask for on this tick."""
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + _LOOK_AGAIN_S
            self._active = self._count_active()
        if self.absent:
            return ()
        rates = (NVLINK_TX_KIB, NVLINK_RX_KIB)
        return rates + NVLINK_ERRORS if now_s >= self._errors_at_s + _ERRORS_EVERY_S else rates

    def read(
        self, values: Mapping[FieldKey, FieldValue], reader: FieldReader, gpm: Gpm | None, now_s: float
    ) -> tuple[float | None, float | None, int | None]:
        """Sent and received bytes per second, and errors since the driver was loaded."""
        if self.absent:
            for field in ("nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s", "nvlink_errors"):
                self._asker.lacks(field, NO_LINK)
            return None, None, None
        sent = self._rate("nvlink_tx_bytes_per_s", NVLINK_TX_KIB, self._tx, values, reader, now_s)
        received = self._rate("nvlink_rx_bytes_per_s", NVLINK_RX_KIB, self._rx, values, reader, now_s)
        if sent is None and gpm is not None:
            sent = self._asker.instead("nvlink_tx_bytes_per_s", gpm.nvlink_tx_bytes_per_s)
        if received is None and gpm is not None:
            received = self._asker.instead("nvlink_rx_bytes_per_s", gpm.nvlink_rx_bytes_per_s)
        counted = [values[key].value for key in NVLINK_ERRORS if key in values]
        if counted:
            self._errors, self._errors_at_s = sum(counted), now_s
        if self._errors is None:
            self._asker.lacks("nvlink_errors", reader.reason(NVLINK_ERRORS[0]))
        return sent, received, self._errors

    def _rate(
        self,
        field: str,
        key: FieldKey,
        rate: CounterRate,
        values: Mapping[FieldKey, FieldValue],
        reader: FieldReader,
        now_s: float,
    ) -> float | None:
        kib_per_s, reason = rate.update(values.get(key), now_s, None)
        if kib_per_s is None:
            self._asker.lacks(field, reason if key in values else reader.reason(key))
            return None
        return kib_per_s * _KIB

    def _count_active(self) -> int | None:
        """How many links are up; None when the driver tells of none and its silence need not mean that."""
        up = 0
        for link in range(_MAX_LINKS):
            state = self._asker.ask("nvlink", ("nvmlDeviceGetNvLinkState", link))
            if state is None:
                self._asker.missing.pop("nvlink", None)
                has_none = self._asker.code("nvlink") in (NOT_SUPPORTED, INVALID_ARGUMENT)
                return up if link or has_none else None
            up += state == 1
        return up
