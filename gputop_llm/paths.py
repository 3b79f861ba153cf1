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


def baselines_folder() -> Path:
    """Where what was learnt of engines is kept. It is made when something is first stored."""
    from platformdirs import user_state_path

    return user_state_path(APP) / "baselines"
