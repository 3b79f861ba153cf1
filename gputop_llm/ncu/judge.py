"""What commands ask of profiles: which of the files are some, and their verdict, alone or beside a capture's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gputop_llm.errors import UsageError
from gputop_llm.model.finding import Verdict
from gputop_llm.ncu import assemble, shapes, shares, what_if
from gputop_llm.ncu.read import is_profile, read_profile
from gputop_llm.verdict.context import Context


def told_apart(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """The captures (and folders of captures) among the paths, and the profiles of Nsight Compute.

    Raises:
        GputopError: a file can't be read.
    """
    profiles = [path for path in paths if is_profile(path)]
    return [path for path in paths if path not in profiles], profiles


class Profiles:
    """The profiles of one question, read at once.

    Args:
        paths: the files.
        kernel: only kernels with this in their name; None for all.

    Raises:
        UsageError: a file is named twice.
        GputopError: a file can't be read, or holds no launch.
    """

    def __init__(self, paths: Sequence[Path], kernel: str | None = None) -> None:
        if len({path.resolve() for path in paths}) < len(paths):
            raise UsageError("a file is named twice", "each launch would count twice", "")
        self._profile = read_profile(paths)
        self._kernel = kernel

    def verdict(self) -> Verdict:
        """What the profiles say by themselves."""
        return assemble.judge(self._profile, self._kernel)[0]

    def beside(self, capture: Verdict, context: Context) -> Verdict:
        """The verdict on a capture with what the profiles say of its kernels; shapes are those of the capture."""
        names = {kernel.full_name for kernel in self._profile.kernels}
        verdict, groups = assemble.judge(self._profile, self._kernel, shapes.of_kernels(context, names))
        return what_if.beside(capture, shares.of_kernels(context, names), verdict, groups)
