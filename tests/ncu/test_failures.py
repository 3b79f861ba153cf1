"""What ncu says when it fails, and the cause and way out that the user reads."""

from __future__ import annotations

import re

import pytest

from gputop_llm.cli import main
from gputop_llm.ncu.failures import explain
from tests.support.captures import field_case

TEXTS = {
    "permission": "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance "
    "Counters on the target device 0.",
    "vgpu": "==ERROR== ERR_NVGPUCTRPERM - profiling is not enabled on this vGPU",
    "no-profiler-library": "==ERROR== Failed to initialize the profiler: LibraryNotLoaded",
    "counters-busy": "==ERROR== Profiling failed because a driver resource was unavailable. Ensure that no other tool "
    "(like DCGM) is concurrently collecting profiling data.",
    "no-cuda-driver": "==ERROR== Nsight Compute failed to connect to the CUDA driver (stub libcuda.so.1 on path?)",
    "no-memory-for-replay": "==ERROR== Failed to save memory for replay",
    "memory-in-the-way": "==WARNING== Backing up device memory in system memory. Kernel replay might be slow.",
    "driver-too-old": "==ERROR== Insufficient driver version to profile",
    "stream-capture": "==ERROR== Profiling during a stream capture is not supported",
    "lock-file": "==ERROR== Failed to open/create lock file /tmp/nsight-compute-lock",
    "program-ended": "==ERROR== Connection error detected communicating with target application.",
    "nothing-to-attach": "No processes found on 127.0.0.1 (ports 49152-49215)",
    "report-unreadable": "==ERROR== Could not open report file",
    "mig-shared": "==ERROR== Failed to access the shared units of this MIG instance",
    "confidential-computing": "==ERROR== Profiling is not supported in confidential computing mode",
    "not-executable": "==ERROR== '/opt/bench' does not exist or is not an executable. Please make sure to specify the "
    "absolute path to '/opt/bench' if the executable is not in the local directory.",
    "bad-regex": "==ERROR== Invalid regex provided to --kernel option. Error while parsing 'ge[>>>HERE>>>'.",
    "unknown-option": "==ERROR== unrecognised option '--bogus'. Use --help for further details.",
    "program-failed": "==ERROR== The application returned an error code (139).",
    "no-match": "==WARNING== No kernels were profiled.",
    "child-processes": "==WARNING== No kernels were profiled.\n==WARNING== Profiling kernels launched by child "
    "processes requires the --target-processes all option.",
}


@pytest.mark.parametrize(("id", "text"), TEXTS.items(), ids=list(TEXTS))
def test_each_text_has_its_cause_and_a_way_out(id, text):
    failure = explain(text + "\n==PROF== Disconnected from process 77\n==WARNING== No kernels were profiled.\n")

    assert failure.id == {"memory-in-the-way": "no-memory-for-replay"}.get(id, id)
    assert failure.why
    assert failure.todo


def test_what_is_no_failure_is_not_explained():
    assert explain("==PROF== Connected to process 77\n==PROF== Disconnected from process 77\n") is None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("permission", ("restricted to administrators", "CAP_SYS_ADMIN", "NVreg_RestrictProfilingToAdminUsers=0",
                        "--cap-add=SYS_ADMIN")),
        ("filter", ("no kernel matched", "gemm_a, norm_b", "--kernel-name")),
        ("child", ("child process", "--target-processes all")),
    ],
)  # fmt: skip
def test_a_log_of_a_failure_gives_one_sentence_and_no_verdict(capsys, name, said):
    code = main(["verdict", str(field_case(31) / f"{name}.log")])
    out, err = capsys.readouterr()

    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    for words in said:
        assert words in err
    assert "restricted" not in err or "no kernel" not in err


def test_names_that_ncu_lists_are_shown_inert():
    failure = explain("==WARNING== No kernels were profiled.\nAvailable Kernels:\n1. \x1b[31mevil\u202e\n")

    assert "evil" in failure.why
    assert not re.search("[\x1b\u202e]", failure.why)
