"""The second rank of a case: makes steps until the first one ends. Run as `python -m`, by `lab.ranks`."""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys

from gputop_llm.lab.ranks import join

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """`MODULE cuda|cpu fixed|cause PORT PARENT`: killed as its parent ends."""
    module, device, which, port, first = sys.argv[1:]
    # However the first rank ends, nobody must be left waiting for it in a collective.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(first):
        return
    # Ctrl-C is for the first rank, which ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import torch

    if device == "cpu":
        torch.set_num_threads(1)
    join(device, 1, int(port))
    step = importlib.import_module(module).step_of(device, which == "fixed", 1)
    with torch.inference_mode():
        done = None
        while True:
            tokens = step()
            if device == "cuda":
                # A step ahead of the GPU, as the first rank is.
                if done is not None:
                    done.synchronize()
                done = torch.cuda.Event(blocking=True)
                done.record()
            else:
                tokens.tolist()


if __name__ == "__main__":
    main()
