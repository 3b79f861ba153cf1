"""One engine whose data-parallel ranks serve a metrics page each, as one reading.

vLLM's --data-parallel-multi-port-external-lb runs a server per rank, whose page has that rank only. All pages
are asked at once, and one that doesn't answer holds up the others once and no more.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import urlsplit

from gputop_llm.errors import GputopError, SourceError
from gputop_llm.model import EngineReading
from gputop_llm.sources.base import Source
from gputop_llm.sources.pages_merged import merged
from gputop_llm.units import seconds

log = logging.getLogger(__name__)

# For the others once one page has answered: a busy server takes about as long as its neighbours.
GRACE_S = 1.0


class _Page:
    """One page: its newest answer, and whether somebody is asking for it right now."""

    def __init__(self, url: str, source: Source[EngineReading]) -> None:
        self.url = url
        self.source = source
        self.since: float | None = None
        self.turn = 0
        self.answer: EngineReading | None = None
        self.failure: str | None = None
        # It did not keep up with the others, and is not waited for until it answers again.
        self.behind = False

    def unread(self, turn: int) -> str | None:
        """Why there is nothing of it in this turn; None if there is."""
        if self.since is not None:
            late = f"{self.source.name} has not answered for {seconds(time.monotonic() - self.since)}"
            return self.failure or late
        if self.turn != turn or self.answer is None:
            return self.failure or f"{self.source.name} answered too late"
        return self.answer.problem and f"{self.source.name}: {self.answer.problem}"


class PagesSource:
    """Asks the pages of one engine, each with a source of its own.

    Args:
        sources: by URL, in the order of the ranks.
    """

    def __init__(self, sources: Mapping[str, Source[EngineReading]]) -> None:
        self._pages = [_Page(url, source) for url, source in sources.items()]
        first = self._pages[0]
        self.name = f"{first.source.name} and {len(self._pages) - 1} more"
        self.deadline_s = max(page.source.deadline_s for page in self._pages)
        self._state = threading.Condition()
        self._turn = 0
        self._aborted = self._closed = False
        self._started: dict[str, float] = {}
        self._newest_start_s: float | None = None
        self._by_port = False
        self._each_is_the_whole = False

    def poll(self) -> EngineReading:
        """One reading of all pages; `unread` says which of them gave nothing.

        Raises:
            SourceError: none of them gave anything.
        """
        with self._state:
            self._turn += 1
            self._aborted = False
            idle = [page for page in self._pages if page.since is None]
            for page in idle:
                page.since, page.turn = time.monotonic(), self._turn
        for page in idle:
            threading.Thread(target=self._ask, args=(page,), name=f"poll {page.source.name}", daemon=True).start()
        with self._state:
            self._wait()
            unread = {page.url: why for page in self._pages if (why := page.unread(self._turn)) is not None}
            answers = {p.url: p.answer for p in self._pages if p.url not in unread and p.answer is not None}
            empty = [p.answer for p in self._pages if p.turn == self._turn and p.since is None and p.answer]
        if not answers:
            if len(empty) == len(self._pages):
                return empty[0]
            raise SourceError(f"none of the engine's {len(self._pages)} pages can be read", next(iter(unread.values())))
        return self._merged(answers, unread)

    def _wait(self) -> None:
        """Waits for the pages that keep up; those that don't this time are not waited for the next time."""
        end = time.monotonic() + self.deadline_s
        shortened = False
        while not self._aborted:
            running = [page for page in self._pages if page.since is not None and not page.behind]
            if not running and (self._any_answer() or all(page.since is None for page in self._pages)):
                return
            if self._any_answer() and not shortened:
                shortened, end = True, min(end, time.monotonic() + GRACE_S)
            left = end - time.monotonic()
            if left <= 0:
                break
            self._state.wait(left)
        for page in self._pages:
            page.behind = page.behind or page.since is not None

    def _any_answer(self) -> bool:
        return any(page.turn == self._turn and page.since is None and page.answer for page in self._pages)

    def _ask(self, page: _Page) -> None:
        answer, failure = None, None
        try:
            answer = page.source.poll()
        except GputopError as error:
            failure = error.sentence()
        except Exception as error:  # one page's bug must not silence the others
            log.exception("%s failed", page.source.name)
            failure = f"{page.source.name} failed: {type(error).__name__} (the log has the details)"
        with self._state:
            page.answer, page.failure, page.since = answer, failure, None
            page.behind = page.behind and answer is None
            closed = self._closed
            self._state.notify_all()
        if closed:
            page.source.close()

    def _merged(self, answers: Mapping[str, EngineReading], unread: Mapping[str, str]) -> EngineReading:
        self._note_starts(answers)
        by_port = {str(urlsplit(url).port or url): answer for url, answer in answers.items()}
        together = merged(by_port, self._by_port)
        # Once seen it stays so: a rank that changed its name whenever a page is silent would be a new one each time.
        self._by_port = together.by_port
        if len(answers) > 1:
            self._each_is_the_whole = together.registries == 1
        reading = replace(together.reading, started_s=self._newest_start_s)
        if self._each_is_the_whole:
            return replace(reading, notes=(*reading.notes, *unread.values()))
        return replace(reading, unread=dict(unread))

    def _note_starts(self, answers: Mapping[str, EngineReading]) -> None:
        """Keeps the newest start of a page: a rank that restarts moves it, one that was only silent doesn't."""
        starts = {url: answer.started_s for url, answer in answers.items() if answer.started_s is not None}
        known = self._started
        moved = [at for url, at in starts.items() if not known or (url in known and known[url] != at)]
        if self._newest_start_s is not None:
            moved.append(self._newest_start_s)
        self._newest_start_s = max(moved, default=None)
        self._started = {**known, **starts}

    def abort(self) -> None:
        """Ends a poll that is under way in another thread."""
        with self._state:
            self._aborted = True
            self._state.notify_all()
        for page in self._pages:
            page.source.abort()

    def close(self) -> None:
        """Closes all pages; one that is being asked is aborted, and closed as it ends."""
        with self._state:
            self._closed = True
            idle = [page for page in self._pages if page.since is None]
            busy = [page for page in self._pages if page.since is not None]
        for page in busy:
            page.source.abort()
        for page in idle:
            page.source.close()
