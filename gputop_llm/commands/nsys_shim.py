"""What nsys launches in place of a program: gives it its own input, output and signals back, and becomes it.

Run by path, isolated and without site packages: `nsys_shim.py SOCKET MASK PROGRAM ARGUMENTS...`. SOCKET is a
descriptor, MASK the signals (numbers with commas) that were blocked before. It says its PID there, is then handed what
is open of 0 to 2, with a line of their digits, and says "!ERRNO" when the program can't be executed.
"""

from __future__ import annotations

import os
import signal
import socket
import sys

NOT_EXECUTABLE, NOT_FOUND = 126, 127


def main() -> int:
    """Becomes the program."""
    argv = sys.argv[3:]
    # Closed when the program begins.
    told = socket.socket(fileno=os.dup(int(sys.argv[1])))
    os.close(int(sys.argv[1]))
    told.sendall(b"%d\n" % os.getpid())
    names, given, _, _ = socket.recv_fds(told, 16, 3)
    if not names:
        return NOT_EXECUTABLE
    for ours, theirs in zip(given, map(int, names.decode().strip()), strict=True):
        os.dup2(ours, theirs)
        os.close(ours)
    for closed in {"0", "1", "2"} - set(names.decode()):
        os.close(int(closed))
    # Python ignores these; the program is to find them as it would have found them.
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [int(number) for number in sys.argv[2].split(",") if number])
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        told.sendall(b"!%d\n" % (error.errno or 0))
        return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE


if __name__ == "__main__":
    sys.exit(main())
