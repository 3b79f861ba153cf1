"""What an Xid number means, and what NVIDIA advises: the documented ones, for Ampere and newer GPUs.

Source: NVIDIA, "Analyzing Xid Errors with the Xid Catalog",
https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html (its tables "Xids" and
"Guidance Class"). Numbers that the catalogue calls unused are left out. `act` is its
immediate action, which brings the system back; `then` what it advises to find out why.
"""

from __future__ import annotations

from dataclasses import dataclass

from gputop_llm.model.symptom import Severity

SOURCE = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"

ACTIONS = {
    "CHECK_APP": "check the application: it gave the GPU bad data, or used it wrongly",
    "CHECK_MECHANICALS": "check the board's seating and its power cables",
    "CHECK_UVM": "reset the GPU if unified memory or vGPU is used, else nothing",
    "CONTACT_SUPPORT": "contact the vendor's support",
    "FOLLOW_OTHER": "it follows from another Xid: act on that one; report it if it comes alone",
    "IGNORE": "nothing needs to be done",
    "INVESTIGATE_LINK_SI": "check the signal quality of the link",
    "INVESTIGATE_SW": "look for the fault in the application or in NVIDIA's software",
    "INVESTIGATE_SW_USER": "look who took the link down, if that was not meant",
    "RESET_GPU": "stop what runs on the GPU and reset it (nvidia-smi --gpu-reset)",
    "RESTART_APP": "restart the application; no reset is needed",
    "RESTART_BM": "reboot the machine",
    "RESTART_VM": "restart the virtual machine; no reset is needed",
    "UPDATE_SWFW": "update drivers and firmware; guest and host driver must fit together",
    "WORKFLOW_NVLINK5_ERR": "decode the kernel log's message with the catalogue: nothing, or a reset of the GPU",
    "WORKFLOW_NVLINK_ERR": "reset the GPU or reboot; decode the kernel log's registers with the catalogue",
    "WORKFLOW_XID_13": "run compute-sanitizer; if it recurs on the same TPC and GPC: DCGM and field diagnostics",
    "WORKFLOW_XID_31": "run compute-sanitizer; if it recurs on the same GPU: DCGM and field diagnostics",
    "WORKFLOW_XID_45": "alone: restart the fabric manager; else act on the Xid that came with it",
    "WORKFLOW_XID_48": "reset the GPU; with Xid 63 or 64 drain it first; alone: field diagnostics",
    "XID_137_FLOW": "run compute-sanitizer: a peer access over NVLink was not allowed",
    "XID_154": "do what its message in the kernel log says (drain, reset or reboot)",
}
"""The catalogue's classes of guidance, in short."""

_CRITICAL = frozenset(
    ("CHECK_MECHANICALS", "RESET_GPU", "RESTART_BM", "RESTART_VM", "WORKFLOW_NVLINK_ERR", "WORKFLOW_XID_48", "XID_154")
)


@dataclass(frozen=True, slots=True)
class Xid:
    """One Xid. `act` and `then` are keys of ACTIONS, None where the catalogue says nothing."""

    number: int
    meaning: str
    act: str | None = None
    then: str | None = None

    @property
    def severity(self) -> Severity:
        """Critical where the GPU or the machine must be taken out of service, a note where nothing is to be done."""
        if self.act in _CRITICAL:
            return Severity.CRITICAL
        # 43: the GPU is well, and the application that used it has ended all the same.
        return Severity.NOTE if self.act == "IGNORE" and self.number != 43 else Severity.WARNING

    @property
    def advice(self) -> str:
        """NVIDIA's advice in one sentence."""
        first = ACTIONS[self.act] if self.act else "NVIDIA's catalogue names no action"
        return f"{first}; if it recurs: {ACTIONS[self.then]}" if self.then and self.then != self.act else first


def lookup(number: int) -> Xid:
    """What an Xid number means; an unknown one has a meaning that says so."""
    return _TABLE.get(number) or Xid(number, "not in NVIDIA's catalogue")


_ROWS: tuple[tuple[int, str, str | None, str | None], ...] = (
    (8, "GPU stopped processing", "RESTART_APP", "CONTACT_SUPPORT"),
    (11, "invalid or corrupted push buffer stream", "RESTART_APP", "CHECK_APP"),
    (13, "graphics engine exception (often an access out of bounds)", "RESTART_APP", "WORKFLOW_XID_13"),
    (14, "injected test error", "IGNORE", "CONTACT_SUPPORT"),
    (25, "invalid or illegal push buffer stream", "RESTART_APP", "CHECK_APP"),
    (31, "GPU memory page fault (often an illegal address)", "RESTART_APP", "WORKFLOW_XID_31"),
    (32, "corrupted push buffer stream (often the PCIe link)", "RESTART_APP", "CHECK_APP"),
    (37, "driver firmware error", "IGNORE", "CHECK_APP"),
    (38, "driver firmware error", "IGNORE", "CONTACT_SUPPORT"),
    (39, "copy engine exception", "RESTART_APP", "CONTACT_SUPPORT"),
    (40, "copy engine exception", "RESTART_APP", "CONTACT_SUPPORT"),
    (41, "copy engine exception", "RESTART_APP", "CONTACT_SUPPORT"),
    (43, "an application's fault ended its work; the GPU is healthy", "IGNORE", "CONTACT_SUPPORT"),
    (44, "graphics engine fault during a context switch", "IGNORE", "CONTACT_SUPPORT"),
    (45, "an application's work was torn down (killed, or after another error)", "WORKFLOW_XID_45", None),
    (46, "GPU stopped processing (timeout)", "RESET_GPU", "CONTACT_SUPPORT"),
    (48, "double-bit ECC error", "WORKFLOW_XID_48", "WORKFLOW_XID_48"),
    (54, "auxiliary power is not connected", "CHECK_MECHANICALS", "CONTACT_SUPPORT"),
    (60, "video processor exception", "RESTART_APP", "INVESTIGATE_SW"),
    (62, "internal microcontroller halted", "RESET_GPU", "CONTACT_SUPPORT"),
    (63, "a memory row is to be remapped", "IGNORE", "IGNORE"),
    (64, "a memory row could not be remapped", "RESET_GPU", "CONTACT_SUPPORT"),
    (66, "illegal access by the driver", "IGNORE", "INVESTIGATE_SW"),
    (67, "illegal access by the driver", "IGNORE", "CONTACT_SUPPORT"),
    (68, "video decoder exception", "RESTART_APP", "CONTACT_SUPPORT"),
    (69, "graphics engine class error", "RESTART_APP", "CHECK_APP"),
    *((number, "copy engine error", "RESTART_APP", "CONTACT_SUPPORT") for number in (70, 71, 72, 75, 76, 77, 85)),
    (74, "NVLink error", "WORKFLOW_NVLINK_ERR", "CONTACT_SUPPORT"),
    (78, "vGPU could not start", "UPDATE_SWFW", "UPDATE_SWFW"),
    (79, "GPU has fallen off the bus", "RESTART_BM", "CONTACT_SUPPORT"),
    (80, "corrupted data was sent to the GPU", "RESTART_APP", "CHECK_APP"),
    *((number, "JPEG decoder error", "RESTART_APP", "CONTACT_SUPPORT") for number in (82, *range(99, 106))),
    *((number, "video decoder error", "RESTART_APP", "CONTACT_SUPPORT") for number in (83, 84, 88, 89, 96, 97, 98)),
    (86, "optical flow engine exception", "RESTART_APP", "CONTACT_SUPPORT"),
    (92, "high rate of single-bit ECC errors", "IGNORE", "CONTACT_SUPPORT"),
    (93, "InfoROM wear limit reached (not fatal)", "IGNORE", "CONTACT_SUPPORT"),
    (94, "contained memory error: one application is affected", "RESTART_APP", "FOLLOW_OTHER"),
    (95, "uncontained memory error: all applications are affected", "RESET_GPU", "FOLLOW_OTHER"),
    (106, "SMBPBI test message", "IGNORE", "IGNORE"),
    (107, "SMBPBI test message (silent)", "IGNORE", "IGNORE"),
    (109, "context switch timed out", "RESET_GPU", "CONTACT_SUPPORT"),
    (110, "security fault", "RESET_GPU", "INVESTIGATE_SW"),
    (119, "the GPU's system processor (GSP) doesn't answer", "RESET_GPU", "INVESTIGATE_SW"),
    (120, "error in the GPU's system processor (GSP)", "RESET_GPU", "INVESTIGATE_SW"),
    (121, "corrected errors on the C2C link to the Grace CPU", "IGNORE", "CONTACT_SUPPORT"),
    *((number, "copy engine error", "RESTART_APP", "CONTACT_SUPPORT") for number in range(126, 136)),
    (136, "NVLink training failed", "RESET_GPU", "INVESTIGATE_LINK_SI"),
    (137, "NVLink privilege error (illegal peer access)", "IGNORE", "XID_137_FLOW"),
    (139, "optical flow engine error", "RESTART_APP", "CONTACT_SUPPORT"),
    (140, "unrecovered ECC error", "RESET_GPU", "CONTACT_SUPPORT"),
    (141, "CUDA fast path error", "IGNORE", "CONTACT_SUPPORT"),
    (142, "video encoder error", "CONTACT_SUPPORT", None),
    (143, "GPU initialisation error", "RESET_GPU", "CONTACT_SUPPORT"),
    (144, "NVLink error (SAW)", "WORKFLOW_NVLINK5_ERR", "WORKFLOW_NVLINK5_ERR"),
    (145, "NVLink error (RLW)", "WORKFLOW_NVLINK5_ERR", "WORKFLOW_NVLINK5_ERR"),
    (146, "NVLink error (TLW)", "WORKFLOW_NVLINK5_ERR", "WORKFLOW_NVLINK5_ERR"),
    (147, "NVLink error (TREX)", "WORKFLOW_NVLINK5_ERR", "WORKFLOW_NVLINK5_ERR"),
    (148, "NVLink error (NVLPW_CTRL)", "WORKFLOW_NVLINK5_ERR", "WORKFLOW_NVLINK5_ERR"),
    (149, "NVLink error (NETIR)", "WORKFLOW_NVLINK5_ERR", "WORKFLOW_NVLINK5_ERR"),
    (150, "NVLink error (MSE)", "WORKFLOW_NVLINK5_ERR", "WORKFLOW_NVLINK5_ERR"),
    (151, "key rotation error (confidential computing)", "RESTART_VM", "CONTACT_SUPPORT"),
    (152, "DLA SMMU error", "IGNORE", "CONTACT_SUPPORT"),
    (153, "DLA timeout", "IGNORE", "CONTACT_SUPPORT"),
    (154, "the recovery that the GPU needs has changed", "XID_154", None),
    (155, "NVLink taken down by software", "RESET_GPU", "INVESTIGATE_SW_USER"),
    (156, "a faulty unit is to be retired", "RESET_GPU", "IGNORE"),
    (157, "a faulty unit could not be retired: none is left to replace it", "IGNORE", "CONTACT_SUPPORT"),
    (158, "fatal GPU timeout", "RESET_GPU", "CONTACT_SUPPORT"),
    (159, "C2C error that is not of data", "CHECK_UVM", "FOLLOW_OTHER"),
    (160, "a memory channel is to be retired", "IGNORE", "INVESTIGATE_SW"),
    (161, "a memory channel could not be retired", "IGNORE", "INVESTIGATE_SW"),
    (162, "power smoothing hardware is engaged again", None, None),
    (163, "power smoothing hardware is disengaged", None, None),
    (164, "power smoothing hardware is near the end of its life", None, None),
    (165, "power smoothing hardware is at the end of its life", None, None),
    (166, "unencrypted NVLink traffic (confidential computing)", None, None),
    (167, "fatal PCIe timeout", None, None),
    (168, "less GPU memory: errors in a protected region", None, None),
    (169, "internal microcontroller (SEC2) halted", None, None),
    (170, "NVLink interrupt (confidential computing)", None, None),
    # The catalogue names no action for these two: they only add to an Xid 48.
    (171, "uncorrectable error in DRAM: details of an Xid 48", "WORKFLOW_XID_48", None),
    (172, "uncorrectable error in SRAM: details of an Xid 48", "WORKFLOW_XID_48", None),
)

_TABLE = {row[0]: Xid(*row) for row in _ROWS}
