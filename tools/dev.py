"""Sets up this checkout's own `.venv` and runs the program or its tests in it.

    python3 tools/dev.py run [ARGUMENTS OF gputop-llm]
    python3 tools/dev.py test
    python3 tools/dev.py test-real

Needs nothing but Python: where the distribution ships `venv` without pip
(Debian, Ubuntu), pip comes from the package index (tools/get_pip.py). `.venv` is
used again for as long as pyproject.toml and what is compiled stay the same.
"""

import os
import sys

# Before anything that an older Python cannot even compile or import.
if sys.version_info < (3, 10):  # noqa: UP036
    sys.exit(
        "gputop-llm needs Python 3.10 or newer and this is %d.%d: install a newer one and "  # noqa: UP031
        "name it, for example: make run PYTHON=python3.12" % sys.version_info[:2]
    )

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
PYTHON = os.path.join(VENV, "bin", "python")
STAMP = os.path.join(VENV, "gputop-llm.stamp")
UNFINISHED = "unfinished"
#: Older ones do not know `--group`.
OLDEST_PIP = (25, 1)


class SetUpError(Exception):
    """What failed, why and what to do, in one sentence."""


def main(argv: list[str]) -> int:
    """The exit status of the command in `argv`; `run` replaces this process instead."""
    command, arguments = argv[0] if argv else "", argv[1:]
    try:
        if command == "run":
            set_up("run")
            os.execv(PYTHON, [PYTHON, "-m", "gputop_llm", *arguments])
        if command in ("test", "test-real") and not arguments:
            set_up("dev")
            return run_all(test_commands() if command == "test" else test_real_commands())
    except SetUpError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
    sys.stderr.write("usage: python3 tools/dev.py run [ARGUMENTS] | test | test-real\n")
    return 2


def test_commands() -> list[list[str]]:
    """Everything that needs no real engine; the quickest to fail come first."""
    # Many tests wait for real processes: more workers than processors take less time.
    workers = str(min(2 * (os.cpu_count() or 1), 8))
    return [
        [PYTHON, "-m", "ruff", "format", "--check", "--quiet", "."],
        [PYTHON, "-m", "ruff", "check", "--quiet", "."],
        [os.path.join(VENV, "bin", "lint-imports"), "--no-logo"],
        [PYTHON, "-m", "mypy"],
        [PYTHON, "-m", "pytest", "-q", "-n", workers],
    ]


def test_real_commands() -> list[list[str]]:
    """The tests against a real nsys and a real engine; serially, since one engine fills the machine."""
    places = ["tests/capture/nsys", "tests/cli/test_run_nsys.py", "tests/real"]
    return [[PYTHON, "-m", "pytest", "-v", "-n", "0", "-m", "real", *places]]


def run_all(commands: list[list[str]]) -> int:
    """The exit status of the first command that fails, else 0."""
    import subprocess

    for command in commands:
        sys.stderr.write("$ " + " ".join(os.path.relpath(c, ROOT) if c.startswith(ROOT) else c for c in command) + "\n")
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        if status:
            return status
    return 0


def set_up(level: str) -> None:
    """Makes `.venv` hold what `level` needs ("run": the program; "dev": its tests too), or raises SetUpError."""
    if not is_ready(level):
        import fcntl

        # Two starts at once: the second waits, then finds the work done.
        lock = os.open(ROOT, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not is_ready(level):
                build(level)
        finally:
            os.close(lock)


def digest() -> str:
    """A hash of what decides the content of `.venv`, and of the library that is compiled while installing."""
    import glob
    import hashlib

    compiled = glob.glob(os.path.join(ROOT, "gputop_llm", "capture", "*", "*.[ch]"))
    total = hashlib.sha256()
    for path in ["pyproject.toml", "hatch_build.py", *sorted(compiled)]:
        with open(os.path.join(ROOT, path), "rb") as file:
            total.update(hashlib.sha256(file.read()).digest())
    return total.hexdigest()


def read_stamp() -> list[str]:
    """What `.venv` was last made for: [level, hash, *place]; [] where nothing is written."""
    try:
        with open(STAMP, encoding="utf-8") as file:
            return file.read().splitlines()
    except OSError:
        return []


def write_stamp(lines: list[str]) -> None:
    """Replaces the stamp by `lines`, whole or not at all."""
    with open(STAMP + ".new", "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    os.replace(STAMP + ".new", STAMP)


def is_ready(level: str) -> bool:
    """Whether `.venv` can be used as it is."""
    stamp = read_stamp()
    return stamp[:1] in ([level], ["dev"]) and stamp[1:] == [digest(), *place()] and os.path.exists(PYTHON)


def place() -> list[str]:
    """What `.venv` cannot survive a change of: its own path, and the Python that it links to."""
    return [VENV, os.path.realpath(PYTHON)]


def build(level: str) -> None:
    """Makes or completes `.venv`; one that was left half made, moved, or lost its interpreter is made anew."""
    stamp = read_stamp()
    try:
        if not os.path.exists(PYTHON) or stamp == [UNFINISHED] or (stamp and stamp[2:] != place()):
            make_venv()
        write_stamp([UNFINISHED])
        install(level)
        write_stamp([level, digest(), *place()])
    except OSError as error:
        raise SetUpError(f"cannot set up {VENV}: {error}") from None


def make_venv() -> None:
    """A new, empty `.venv` with pip in it."""
    import shutil

    try:
        import venv
    except ImportError:
        raise SetUpError(
            "cannot make .venv: this Python comes without its venv module; "
            "install it (Debian, Ubuntu: apt-get install python3-venv)"
        ) from None
    sys.stderr.write("Setting up .venv (once; about a minute) ...\n")
    shutil.rmtree(VENV, ignore_errors=True)
    os.makedirs(VENV)
    write_stamp([UNFINISHED])
    # Never `with_pip`: on Debian's Python it fails after having made half of it.
    venv.EnvBuilder(symlinks=True).create(VENV)
    put_pip()


def put_pip() -> None:
    """pip into `.venv`."""
    import importlib.util

    if importlib.util.find_spec("ensurepip"):
        run_quietly([PYTHON, "-m", "ensurepip"], "cannot put pip into .venv")
    else:
        import get_pip

        try:
            get_pip.install_into(PYTHON)
        except get_pip.PipUnavailable as error:
            raise SetUpError(str(error)) from None


def install(level: str) -> None:
    """Installs the program (editable), for "dev" its development group too."""
    install_command = [PYTHON, "-m", "pip", "install", "--quiet"]
    if level == "dev":
        sys.stderr.write("Installing what the tests need ...\n")
        if pip_version() < OLDEST_PIP:
            run_quietly([*install_command, "--upgrade", "pip"], "cannot upgrade pip in .venv")
        install_command += ["--group", "dev"]
    run_quietly([*install_command, "--editable", "."], "cannot install the dependencies into .venv")


def pip_version() -> tuple[int, ...]:
    """(major, minor) of the pip in `.venv`."""
    text = run_quietly([PYTHON, "-m", "pip", "--version"], "cannot run the pip of .venv (delete .venv and start again)")
    return tuple(int(part) for part in text.split()[1].split(".")[:2])


def run_quietly(command: list[str], what: str) -> str:
    """What the command prints; SetUpError with its reason when it fails."""
    import subprocess

    environ = dict(os.environ, PIP_USER="0", PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_INPUT="1")
    environ.setdefault("PIP_RETRIES", "2")  # without a network, five of them take half a minute
    for name in ("PIP_TARGET", "PIP_PREFIX", "PYTHONHOME", "PYTHONPATH"):
        environ.pop(name, None)
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SetUpError(f"{what}: {reason(done.stdout + done.stderr)}")
    return done.stdout


def reason(output: str) -> str:
    """Why pip failed and what to do about it, in one clause, from what it printed."""
    unreachable = (
        "NewConnectionError",
        "NameResolutionError",
        "ConnectTimeout",
        "ProxyError",
        "Network is unreachable",
    )
    if any(word in output for word in unreachable):
        return "the package index cannot be reached; connect to the network, or set PIP_INDEX_URL to a mirror"
    if "CERTIFICATE_VERIFY_FAILED" in output:
        return "the package index's certificate is not trusted; set PIP_CERT to your CA bundle"
    if "No space left on device" in output:
        return "the disk is full; free about 300 MB"
    errors = [line.strip() for line in output.splitlines() if "error" in line.lower()]
    return errors[-1] if errors else (output.strip().splitlines() or ["it printed nothing"])[-1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
