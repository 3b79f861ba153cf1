"""Where the program keeps its own files (XDG directories)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

APP = "gputop-llm"


def config_file() -> Path | None:
    """The user's config file, which need not exist; None for a user without a home directory."""
    from platformdirs import user_config_path

    return _below(user_config_path, "config.toml")


def log_file() -> Path | None:
    """The program's own log, whose folder is made when it is first written; None as for `config_file`."""
    from platformdirs import user_state_path

    return _below(user_state_path, "gputop-llm.log")


def baselines_folder() -> Path | None:
    """Where what was learnt of engines is kept, made when something is first stored; None as for `config_file`."""
    from platformdirs import user_state_path

    return _below(user_state_path, "baselines")


def captures_folder() -> Path | None:
    """Where captures go that were not given another place, made with the first; None as for `config_file`.

    Run from a checkout, that is its `captures/local`.
    """
    from platformdirs import user_data_path

    checkout = Path(__file__).parents[1]
    if (checkout / ".git").exists() and (checkout / "captures").is_dir():
        return checkout / "captures" / "local"

    return _below(user_data_path, "captures")


def _below(folder: Callable[[str], Path], name: str) -> Path | None:
    """A user ID that is in no passwd (`docker run --user`) may have no HOME either."""
    try:
        path = folder(APP) / name
    except RuntimeError:
        return None
    # Older versions of platformdirs leave the "~" as it is.
    return path if path.is_absolute() else None
