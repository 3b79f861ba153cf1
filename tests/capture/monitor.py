"""A monitor of its own process, for tests that kill it: takes the capture of a plan, and tells the stages.

Run as `python -m tests.capture.monitor PLAN`.
"""

from __future__ import annotations

import json
import sys

from gputop_llm.capture import run as run_module
from gputop_llm.capture.plan import plan_of


def main():
    run_module.WORKER = "tests.capture.patched_worker"
    run = run_module.CaptureRun(plan_of(json.loads(sys.argv[1])))
    print("worker", run.pid, flush=True)
    for told in run.follow():
        print(told.stage, told.records_bytes, flush=True)


if __name__ == "__main__":
    main()
