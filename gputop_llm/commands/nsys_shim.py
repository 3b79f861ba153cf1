"""What nsys launches in place of a program: gives it its own input, output and signals back, and becomes it.

Run by path, isolated and without site packages: `nsys_shim.py INPUT OUTPUT ERRORS TOLD MASK PROGRAM ARGUMENTS...`. The
first four are descriptors, MASK the signals (numbers with commas) that were blocked before. It says its PID to TOLD,
and "!ERRNO" when the program can't be executed.
"""

from __future__ import annotations

import os
import signal
import sys

NOT_EXECUTABLE, NOT_FOUND = 126, 127


def main() -> int:
    """Becomes the program."""
    told = int(sys.argv[4])
    argv = sys.argv[6:]
    for ours, theirs in zip(map(int, sys.argv[1:4]), (0, 1, 2), strict=True):
        if ours >= 0:
            os.dup2(ours, theirs)
            os.close(ours)
        else:
            os.close(theirs)
    os.set_inheritable(told, False)
    os.write(told, b"%d\n" % os.getpid())
    # Python ignores these; the program is to find them as it would have found them.
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [int(number) for number in sys.argv[5].split(",") if number])
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        os.write(told, b"!%d\n" % (error.errno or 0))
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE


if __name__ == "__main__":
    sys.exit(main())
