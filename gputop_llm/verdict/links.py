"""What the links between host and device, and between devices, can carry: nominal rates by the device's name."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Nominal bytes per second of 16 lanes, one direction (PCI-SIG: transfer rate × lanes × encoding ÷ 8).
_PCIE_16 = {3: 15.75e9, 4: 31.5e9, 5: 63.0e9, 6: 121.0e9}


@dataclass(frozen=True, slots=True)
class Link:
    """One link's name and its nominal rate in one direction."""

    name: str
    bytes_per_s: float


def _pcie(generation: int, lanes: int = 16) -> Link:
    return Link(f"PCIe {generation}.0 x{lanes}", _PCIE_16[generation] * lanes / 16)


def _nvlink(total_gb_per_s: int) -> Link:
    """NVIDIA's data sheets give both directions added."""
    return Link("NVLink", total_gb_per_s / 2 * 1e9)


# (name, link to the host, link to its peers), the first match holds. From NVIDIA's and AMD's data sheets. What a slot
# or a virtual machine really gives may be less.
_LINKS: tuple[tuple[re.Pattern[str], Link, Link | None], ...] = tuple(
    (re.compile(pattern), host, peer)
    for pattern, host, peer in (
        (r"GB[23]00", Link("NVLink-C2C", 450e9), _nvlink(1800)),
        (r"GH200", Link("NVLink-C2C", 450e9), _nvlink(900)),
        (r"B300", _pcie(6), _nvlink(1800)),
        (r"B[12]00", _pcie(5), _nvlink(1800)),
        (r"H100 PCIe|H100 NVL", _pcie(5), _nvlink(600)),
        (r"H[12]00|H20\b", _pcie(5), _nvlink(900)),
        (r"H800", _pcie(5), _nvlink(400)),
        (r"A100", _pcie(4), _nvlink(600)),
        (r"A800", _pcie(4), _nvlink(400)),
        (r"V100", _pcie(3), _nvlink(300)),
        (r"RTX PRO 6000 Blackwell|RTX 50[789]0", _pcie(5), None),
        (r"RTX 5060", _pcie(5, 8), None),
        (r"RTX 4060", _pcie(4, 8), None),
        (
            r"L40|L20\b|L4\b|A10\b|A10G|A16|A2\b|A30|A40|RTX (6000|5000|4500) Ada|RTX A\d{4}|RTX [34]0[6789]0",
            _pcie(4),
            None,
        ),
        (r"T4\b|RTX 20[678]0|P100|P40|GTX", _pcie(3), None),
        (r"MI3\d\dX?", _pcie(5), None),
        (r"MI2\d\d", _pcie(4), None),
    )
)


def host_link(device_name: str | None) -> Link | None:
    """The link between host and device; None if the device isn't known."""
    return _of(device_name)[0]


def peer_link(device_name: str | None) -> Link | None:
    """The link between devices of this kind; None if unknown, or if they have none but the host's."""
    return _of(device_name)[1]


def _of(device_name: str | None) -> tuple[Link | None, Link | None]:
    for pattern, host, peer in _LINKS:
        if device_name and pattern.search(device_name):
            return host, peer
    return None, None
