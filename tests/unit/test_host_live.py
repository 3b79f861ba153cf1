"""The host source on this machine: real threads that burn CPU are seen, by their names."""

import os
import subprocess
import sys

from gputop_llm.clock import SystemClock
from gputop_llm.model import TargetProcess
from gputop_llm.sources.host import HostSource
from tests.support.real_processes import until

BURNER = """
import ctypes, os, signal, threading
name = lambda text: ctypes.CDLL(None).prctl(15, text, 0, 0, 0)
def burn():
    name(b"burner")
    # The interpreter's lock is given back in here, so that the thread alone is busy.
    import hashlib
    while True:
        hashlib.sha256(b"x" * 5_000_000)
def idle():
    name(b"sleeper")
    signal.sigwait(set(signal.valid_signals()))
for job in (burn, idle, idle):
    threading.Thread(target=job, daemon=True).start()
print("ready", flush=True)
threading.Event().wait()
"""


def test_a_burning_thread_is_the_top_thread_and_counts_for_its_process():
    with subprocess.Popen([sys.executable, "-c", BURNER], stdout=subprocess.PIPE, text=True) as child:
        try:
            child.stdout.readline()
            source = HostSource(lambda: [TargetProcess(child.pid, os.getpid(), "engine-core", "x")])
            source.poll()

            def busy():
                (load,) = source.poll().processes
                hottest = load.top_threads[0] if load.top_threads else None
                if hottest is None or hottest.name != "burner" or hottest.cpu_pct <= 10:
                    return None
                # Polls come within one tick of the kernel's 10 ms here: either may have got it, or both.
                return load if load.cpu_pct >= hottest.cpu_pct * 0.5 else None

            load = until(busy)
        finally:
            child.kill()

    assert load.threads == 4
    assert load.main_thread_pct < load.top_threads[0].cpu_pct
    assert load.rss_bytes > 1 << 20
    assert load.swap_bytes is not None


def test_the_node_is_read_in_full():
    source = HostSource(list)
    source.poll()
    host = until(lambda: found if (found := source.poll()).cpu_pct is not None else None)

    assert host.cores >= os.cpu_count() // 2
    assert 0 <= host.cpu_pct <= 100
    assert 0 <= host.iowait_pct <= 100
    assert host.mem_total_bytes > host.mem_available_bytes > 0
    assert host.load_1m >= 0
    assert host.swap_used_bytes >= 0


def test_own_context_switches_are_counted():
    source = HostSource(lambda: [TargetProcess(os.getpid(), 1, "other", "x")], clock=SystemClock())
    source.poll()

    def switched():
        os.sched_yield()
        (load,) = source.poll().processes
        return load if load.ctx_voluntary_per_s else None

    assert until(switched).ctx_voluntary_per_s > 0
