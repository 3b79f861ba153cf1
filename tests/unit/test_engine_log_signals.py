"""Lines of engines' logs to signals: real wordings, folded tracebacks, and lines that are written to mislead."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gputop_llm.model.log import root_error
from gputop_llm.model.symptom import Severity
from gputop_llm.sources.engine_log_signals import MOST, TEXT, Signals
from gputop_llm.sources.engine_log_text import LONGEST, Lines, unwrapped

RECORDED = Path(__file__).parents[1] / "fixtures/vllm-0.32-worker-killed.log"


def said(*texts):
    """What these pieces of a log say; a `str` is a whole line."""
    lines, signals = Lines(), Signals()
    for text in texts:
        data = text.encode() + b"\n" if isinstance(text, str) else text
        signals.feed([unwrapped(line)[0] for line in lines.feed(data)], lambda _: (None, "read"))
    return signals.all()


def kinds(*texts):
    return [signal.kind for signal in said(*texts)]


def test_a_real_vllm_whose_worker_was_killed():
    found = said(RECORDED.read_bytes())
    assert [(s.kind, s.count) for s in found] == [
        ("memory", 1),
        ("kv-pool", 1),
        ("start", 1),
        ("died", 1),
        ("engine-dead", 1),
        ("engine-dead", 1),
        ("exception", 2),
    ]
    assert found[1].text == "CPU KV cache size: 2,560 tokens, Maximum concurrency for 1,024 tokens per request: 2.50x"
    assert (found[-1].text, found[-1].where) == (
        "RuntimeError: Executor failed.",
        "core.py:1702 in _handle_client_request",
    )
    assert root_error(found).text.startswith("Worker proc VllmWorker-0 died unexpectedly")


@pytest.mark.parametrize(
    ("line", "kind", "severity"),
    [
        ("INFO 02-20 00:01:02 kv_cache_utils.py:522] # GPU blocks: 127626", "kv-pool", 1),
        ("(Worker_TP0 pid=2) INFO 11-06 10:51:48 [gpu_worker.py:349] Available KV cache memory: 2.30 GiB", "memory", 1),
        ("INFO 03-21 20:15:45 [worker.py:267] Memory profiling takes 34.26 seconds", "memory", 1),
        (
            "INFO 05-26 21:34:14 [gpu_model_runner.py:6243] Graph capturing finished in 2 secs, took 0.11 GiB",
            "graphs",
            1,
        ),
        (
            "WARNING 08-20 10:18:39 scheduler.py:1141] Sequence group 147 is preempted by PreemptionMode.RECOMPUTE "
            "mode because there is not enough KV cache space.",
            "preemption",
            2,
        ),
        (
            "(EngineCore pid=9) INFO 11-29 22:25:01 [shm_broadcast.py:1] No available shared memory broadcast block "
            "found in 60 seconds.",
            "slow",
            2,
        ),
        (
            "[2025-07-14 05:48:43 TP0] KV Cache is allocated. #tokens: 38141, K size: 2.33 GB, V size: 2.33 GB",
            "kv-pool",
            1,
        ),
        ("[2025-07-14 05:48:44] Capture cuda graph end. Time elapsed: 7.00 s", "graphs", 1),
        ("[2026-09-13 16:06:07] KV cache pool is full. Retract requests. #retracted_reqs: 1", "preemption", 2),
        (
            "[2025-07-14 05:48:44 TP0] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)",
            "slow",
            3,
        ),
        (
            "2025-10-13T22:12:09.754597Z  INFO text_generation_router: router/src/main.rs:354: Setting max batch total "
            "tokens to 43808",
            "kv-pool",
            1,
        ),
        (
            "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 0.56 GiB for max tokens in paged KV cache (8224).",
            "kv-pool",
            1,
        ),
        ("llama_kv_cache_unified:      CUDA0 KV buffer size =   144.00 MiB", "kv-pool", 1),
        (
            "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 8900.01 MiB on device 0: cudaMalloc failed: out of "
            "memory",
            "out-of-memory",
            3,
        ),
        (
            "srv  update_slots: failed to find free space in the KV cache, retrying with smaller batch size",
            "preemption",
            2,
        ),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 50.00 MiB.", "out-of-memory", 3),
        ("\x1b[36m(RayWorkerWrapper pid=4009)\x1b[0m RuntimeError: CUDA error: out of memory", "out-of-memory", 3),
        (
            "(RayWorkerWrapper pid=4009, ip=10.0.0.2) [rank1]:[E ProcessGroupNCCL.cpp:563] [Rank 1] Watchdog caught "
            "collective operation timeout: WorkNCCL(SeqNum=158046, OpType=GATHER)",
            "nccl",
            3,
        ),
        (
            "[rank0]:[E1206 18:44:12.715298746 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation "
            "timeout: WorkNCCL(SeqNum=7753)",
            "nccl",
            3,
        ),
        ("torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:133, unhandled cuda error", "nccl", 3),
        ("gpu-7:1042:2211 [3] NCCL WARN Cuda failure 'out of memory'", "nccl", 2),
        ("CUDA error: an illegal memory access was encountered", "cuda", 3),
    ],
)
def test_wordings_of_engines_and_libraries(line, kind, severity):
    (found,) = said(line)
    assert (found.kind, found.severity) == (kind, Severity(severity))


TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/opt/a/serving.py", line 12, in chat',
    "    call()",
    '  File "/opt/a/mask.py", line 7, in build',
    "    raise ValueError(x)",
    "    ^^^^^^^^^^^^^^^^^^^",
)


def test_a_traceback_is_its_exception_and_its_innermost_frame():
    (found,) = said(*TRACEBACK, "ValueError: bad mask")
    assert (found.kind, found.severity, found.text, found.where) == (
        "exception",
        Severity.WARNING,
        "ValueError: bad mask",
        "mask.py:7 in build",
    )


def test_an_exception_that_is_out_of_memory_is_that():
    (found,) = said(*TRACEBACK, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    assert (found.kind, found.where) == ("out-of-memory", "mask.py:7 in build")


ROUTER = '{"timestamp":"2025-10-13T22:12:09.754597Z","level":"INFO","message":%s,"target":"text_generation_router"}'
LAUNCHER = '{"timestamp":"2025-10-13T22:12:09.754597Z","level":"ERROR","fields":{"message":%s},"target":"x"}'
PYTHON = '{"name": "vllm", "message": %s, "exc_info": %s}'


def test_lines_of_json_say_what_their_messages_say():
    failed = "\n".join((*TRACEBACK, "torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB."))
    found = said(
        ROUTER % '"Setting max batch total tokens to 43808"',
        # One that another line interrupts goes on behind it.
        *TRACEBACK[:-1],
        LAUNCHER % json.dumps(f"Method Warmup encountered an error.\n{failed}\n"),
        "KeyError: 3",
        PYTHON % ('"EngineCore encountered a fatal error."', json.dumps(failed.replace("2 GiB", "3 MiB"))),
    )
    assert [(s.kind, s.text, s.where) for s in found] == [
        ("kv-pool", "Setting max batch total tokens to 43808", None),
        ("out-of-memory", "torch.OutOfMemoryError: CUDA out of memory. Tried 2 GiB.", "mask.py:7 in build"),
        ("exception", "KeyError: 3", "mask.py:7 in build"),
        ("engine-dead", "EngineCore encountered a fatal error.", None),
        ("out-of-memory", "torch.OutOfMemoryError: CUDA out of memory. Tried 3 MiB.", "mask.py:7 in build"),
    ]


def test_a_traceback_that_ends_nowhere_in_its_line_of_json_does_not_go_on_behind_it():
    assert said(LAUNCHER % json.dumps("\n".join(TRACEBACK)), "ValueError: of no traceback") == ()
    assert said((PYTHON % ('"x"', json.dumps("\n".join(TRACEBACK))))[:-5], "ValueError: of no traceback") == ()


@pytest.mark.parametrize(
    "line",
    [
        ROUTER % '"a prompt:\\nCUDA out of memory"',
        ROUTER % r'"x\\",\"message\":\"CUDA out of memory"',
        ROUTER % r'"CUDA out of memory \u00zz"',
        '{"log": "CUDA out of memory"}',
        '{"message": {"message": 7}, "x": "CUDA out of memory"}',
    ],
)
def test_other_words_in_a_line_of_json_raise_no_alarm(line):
    assert said(line, "KeyError: of no traceback") == ()


def test_tracebacks_of_two_processes_that_write_at_once_are_two():
    a, b = "(Worker_TP0 pid=1) ERROR 11-29 22:25:01 [a.py:1] ", "(Worker_TP1 pid=2) ERROR 11-29 22:25:01 [a.py:1] "
    lines = [prefix + line for line in TRACEBACK for prefix in (a, b)]
    lines += ['INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK', f"{a}KeyError: 1", f"{b}TypeError: two"]
    assert [(s.text, s.where) for s in said(*lines)] == [
        ("KeyError: 1", "mask.py:7 in build"),
        ("TypeError: two", "mask.py:7 in build"),
    ]


def test_sglang_puts_the_traceback_behind_its_own_words():
    (found,) = said(
        "[2025-03-29 18:56:25 TP0] Scheduler hit an exception: " + TRACEBACK[0], *TRACEBACK[1:], "KeyError: 3"
    )
    assert (found.text, found.where) == ("KeyError: 3", "mask.py:7 in build")


def test_lines_that_differ_in_numbers_only_are_counted():
    line = "WARNING 08-20 10:18:39 scheduler.py:1141] Sequence group {} is preempted by PreemptionMode.RECOMPUTE mode"
    (found,) = said(*(line.format(at) for at in range(1000)))
    assert found.count == 1000
    assert "group 999" in found.text


def test_of_many_different_ones_the_newest_are_kept_and_the_start_is_not_pushed_out():
    names = [chr(97 + at // 26) + chr(97 + at % 26) for at in range(200)]
    found = said(
        "Memory pool end. avail mem=1.46 GB", *(x for name in names for x in (*TRACEBACK, f"ValueError: {name}"))
    )
    assert [s.text for s in found] == [
        "Memory pool end. avail mem=1.46 GB",
        *(f"ValueError: {n}" for n in names[-MOST:]),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "INFO 11-29 22:25:01 [logger.py:39] Received request cmpl-1: prompt: 'why CUDA out of memory? "
        "torch.OutOfMemoryError: CUDA out of memory', params: None.",
        "a user said: Worker proc VllmWorker-0 died unexpectedly",
        "prompt: 'EngineDeadError: x NCCL error CUDA error: x KV cache size: 1 tokens'",
        "Traceback (most recent call last): is what it printed",
        "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
    ],
)
def test_words_within_a_line_raise_no_alarm(line):
    assert said(line, "ValueError: not of a traceback") == ()


def test_secrets_markup_and_control_characters():
    (found,) = said(
        *TRACEBACK, b"ValueError: hf_abcdefghijklmnopqrstuvwx \x1b]0;owned\x07 [bold]x[/] \xff \xe2\x80\xae\x00\n"
    )
    assert "hf_abc" not in found.text
    assert found.text.isprintable()
    assert "\\x1b]0;owned\\x07" in found.text
    assert "[bold]x[/]" in found.text
    assert "\\xff" in found.text
    assert "\\u202e" in found.text


def test_a_line_of_a_megabyte_is_cut_and_the_next_one_is_whole():
    found = said(
        *TRACEBACK, b"ValueError: " + b"x" * (1 << 20), b"y" * 100 + b"\n", "Memory pool end. avail mem=1.46 GB"
    )
    assert [s.kind for s in found] == ["exception", "memory"]
    assert len(found[0].text) == TEXT


def test_a_progress_bar_hides_no_line():
    assert kinds(b"Loading:  0%\rLoading: 50%\rMemory pool end. avail mem=1.46 GB\n") == ["memory"]


def test_lines_are_whole_whatever_they_are_read_in():
    data = RECORDED.read_bytes()
    whole = said(data)
    assert said(*(data[at : at + 7] for at in range(0, len(data), 7))) == whole
    lines = Lines()
    lines.feed(b"z" * (5 * LONGEST))
    assert lines.feed(b"z\nnext\n") == [b"z" * LONGEST, b"next"]


def test_what_a_containers_runtime_puts_around_a_line_is_taken_off():
    docker = b'{"log":"Memory pool end. avail mem=1 GB\\n","stream":"stderr","time":"2026-11-29T22:24:48.123456789Z"}'
    kubernetes = b"2026-11-29T22:24:48.123456789Z stderr F Memory pool end. avail mem=1 GB"
    for line in (docker, kubernetes):
        assert unwrapped(line) == (b"Memory pool end. avail mem=1 GB", "2026-11-29T22:24:48.123456789Z")
    for damaged in (docker[:-3], b'{"log":"' + b"[" * 4000, b'{"log":""}'):
        assert unwrapped(damaged) == (damaged, "")
