"""What a PCIe link can carry."""

from __future__ import annotations

# Generation → (transfers per second and lane, share of the bits that is left for packets). PCI Express base
# specifications: 8b/10b up to generation 2, 128b/130b up to 5; 6 and 7 send flits of 256 bytes, 14 of them CRC and FEC.
# Packet headers are not taken off.
_LANE: dict[int, tuple[float, float]] = {
    1: (2.5e9, 8 / 10),
    2: (5e9, 8 / 10),
    3: (8e9, 128 / 130),
    4: (16e9, 128 / 130),
    5: (32e9, 128 / 130),
    6: (64e9, 242 / 256),
    7: (128e9, 242 / 256),
}


def link_bytes_per_s(generation: float | None, width: float | None) -> float | None:
    """What a link carries in one direction in bytes per second: line rate less encoding; None if unknown."""
    lane = _LANE.get(int(generation or 0))
    return None if lane is None or not width else lane[0] * lane[1] * width / 8


def link_name(generation: float | None, width: float | None) -> str:
    """A link as people name it: "gen5 x16"."""
    return f"gen{generation or '?'} x{width or '?'}"
