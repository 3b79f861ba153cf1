"""Which target is in focus: chosen by flag, by being alone, or by the user; kept through restarts."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from urllib.parse import urlsplit

from gputop_llm.config import Config
from gputop_llm.model import NO_PROCESS_DATA, Target
from gputop_llm.redact import public_url
from gputop_llm.sources.owner import user_name

UNKNOWN = "unknown"
LOOPBACK = {"localhost", "127.0.0.1", "::1", "0.0.0.0", "::"}


class Follower:
    """Keeps `focus`, the key of the attached target (None: nothing is attached).

    Not thread-safe; the session locks.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        # Targets are shown, recorded and printed: what they know of the URL must be fit for that.
        self._url = None if config.url is None else public_url(config.url)
        self.focus: str | None = None
        self._followed: Target | None = None
        self._gone = False
        self._beside: set[str] = set()

    def choose(self, target: Target) -> None:
        """The user picked this target."""
        self.focus, self._followed, self._gone = target.key, target, False

    def with_url_target(self, found: Iterable[Target]) -> tuple[Target, ...]:
        """The found targets, plus the one that the user named by URL.

        A local URL that belongs to a found engine is that engine, scraped at
        the given URL alone, and so is any URL that was given together with the engine's PID;
        any other is a target with no processes.
        """
        targets = tuple(found)
        url = self._url
        if url is None:
            return targets
        meant = [any(_same_endpoint(url, own) for own in target.urls) for target in targets]
        if not any(meant):
            meant = [self._config.pid in target.pids for target in targets]
        for position, target in enumerate(targets):
            if meant[position]:
                others = len(target.urls) - 1
                notes = target.notes
                if others > 0:
                    notes = (*notes, f"--url names one of its {others + 1} pages: --pid {target.root_pid} reads all")
                named = replace(target, urls=(url,), urls_from="flag", notes=notes)
                return (*targets[:position], named, *targets[position + 1 :])
        remote = Target(
            key=f"url:{url}",
            engine=UNKNOWN,
            urls=(url,),
            urls_from="flag",
            notes=(
                f"{NO_PROCESS_DATA} (given by --url, and not among this node's processes); "
                "the GPUs and the host are this machine's",
            ),
        )
        return (*targets, remote)

    def update(self, targets: tuple[Target, ...]) -> list[str]:
        """Moves the focus as targets come and go; returns what happened, in words."""
        present = next((t for t in targets if t.key == self.focus), None)
        if present is not None:
            self._followed = present
            self._beside = {t.key for t in targets} - {present.key}
            if self._gone:
                self._gone = False
                return [f"{describe(present)} is back"]
            return []
        if self._followed is not None:
            return self._refind(targets)
        chosen = self._first_choice(targets)
        if chosen is None:
            return []
        self.choose(chosen)
        return [f"attached to {describe(chosen)}"]

    def _refind(self, targets: tuple[Target, ...]) -> list[str]:
        old = self._followed
        assert old is not None
        again = [t for t in targets if t.attachable is None and self._is_again(old, t)]
        if old.engine == UNKNOWN and len(again) == 1:
            # Nothing exited: the process behind the user's URL has been found.
            self.choose(again[0])
            return [f"{old.urls[0]} is {describe(again[0])}"]
        happened = [] if self._gone else [f"{describe(old)} has exited; waiting for it to come back"]
        self._gone = True
        if len(again) == 1:
            self.choose(again[0])
            happened.append(f"re-attached to {describe(again[0])}")
        return happened

    def _is_again(self, old: Target, new: Target) -> bool:
        if new.engine != old.engine and old.engine != UNKNOWN:
            return False
        if old.urls and new.urls:
            return any(_same_endpoint(a, b) for a in old.urls for b in new.urls)
        # The same command beside the old one was its twin, not its successor.
        return new.key not in self._beside and old.model == new.model and old.argv == new.argv

    def _first_choice(self, targets: tuple[Target, ...]) -> Target | None:
        config = self._config
        candidates = [t for t in targets if t.attachable is None]
        if config.url is not None:
            candidates = [t for t in candidates if t.urls_from == "flag"]
        elif config.pid is not None:
            candidates = [t for t in candidates if config.pid in t.pids]
        elif config.gpu is not None:
            candidates = [t for t in candidates if config.gpu in t.gpus]
        engines = [t for t in candidates if t.engine != "cuda"]
        alone = engines or candidates
        return alone[0] if len(alone) == 1 else None


def describe(target: Target) -> str:
    """A target in a few words: "vllm llama-8b (pid 4711)"."""
    name = "an engine" if target.engine == UNKNOWN else f"{target.engine} {target.model or ''}".strip()
    if target.root_pid is not None:
        return f"{name} (pid {target.root_pid})"
    return f"{name} at {target.urls[0]}" if target.urls else name


def key_may_go_to(target: Target, config: Config) -> bool:
    """Whether the API key may be sent there: anybody can start a process that looks like an engine."""
    named = target.urls_from == "flag" or (config.pid is not None and config.pid in target.pids)
    # Whoever is root in a container is not this node's root.
    return named or (target.urls_from != "network" and target.user in ("root", user_name(os.geteuid())))


def _same_endpoint(one: str, other: str) -> bool:
    a, b = urlsplit(one), urlsplit(other)
    if (a.port or _default_port(a.scheme)) != (b.port or _default_port(b.scheme)):
        return False
    return a.hostname == b.hostname or (a.hostname in LOOPBACK and b.hostname in LOOPBACK)


def _default_port(scheme: str) -> int:
    return 443 if scheme == "https" else 80
