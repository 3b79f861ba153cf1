"""Where the program keeps its own files (XDG directories)."""

from __future__ import annotations

from pathlib import Path

APP = "gputop-llm"


def config_file() -> Path:
    """The user's config file; it need not exist."""
    from platformdirs import user_config_path

    return user_config_path(APP) / "config.toml"


def log_file() -> Path:
    """The program's own log. Its folder is made when it is first written."""
    from platformdirs import user_state_path

    return user_state_path(APP) / "gputop-llm.log"


def baselines_folder() -> Path | None:
    """Where what was learnt of engines is kept, made when something is first stored; None without a home directory."""
    from platformdirs import user_state_path

    # A user ID that is in no passwd (`docker run --user`) may have no HOME either.
    try:
        folder = user_state_path(APP) / "baselines"
    except RuntimeError:
        return None
    return folder if folder.is_absolute() else None
