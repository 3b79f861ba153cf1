"""The engine source: one scrape of an engine's /metrics is one `EngineReading`."""

from __future__ import annotations

import json
from dataclasses import replace
from urllib.parse import urlunsplit

from gputop_llm.clock import Clock, SystemClock
from gputop_llm.errors import SourceError, UsageError
from gputop_llm.model import EngineReading
from gputop_llm.printable import printable
from gputop_llm.redact import public_url
from gputop_llm.sources import engines
from gputop_llm.sources.promtext import Samples, TextParser
from gputop_llm.sources.scrape import HttpReader, split_http

_BESIDE_DEADLINE_S = 1.0
_LONGEST_VERSION = 64
# Where trtllm-serve has what others have at /metrics.
_PROMETHEUS = "/prometheus/metrics"


class MetricsSource:
    """Scrapes one engine's metrics page, read-only.

    Args:
        url: the server ("http://127.0.0.1:8000", with the --root-path if it has one), or its page (…/metrics).
        api_key: sent as a Bearer token to that server alone.
        ca_file: PEM file with the authorities to trust for https.
        clock: for the time that is left of a poll.

    Raises:
        UsageError: the URL, key or CA file can't be used.
    """

    deadline_s = 5.0

    def __init__(
        self, url: str, *, api_key: str | None = None, ca_file: str | None = None, clock: Clock | None = None
    ) -> None:
        self._url = metrics_url(url)
        self._found_at = self._url
        server = public_url(self._url).partition("?")[0].removesuffix("/metrics")
        self.name = f"engine {printable(server)}"
        self._clock = clock or SystemClock()
        self._http = HttpReader(api_key=api_key, ca_file=ca_file)
        self._parser = TextParser(engines.NEEDED)
        self._version: str | None = None
        # Asked for once in each life of the server: it is one more request on the engine's event loop.
        self._ask_version = True
        self._ask_prometheus = True
        self._started_s: float | None = None

    def poll(self) -> EngineReading:
        """One scrape.

        Raises:
            SourceError: there is no answer, or it is no metrics page.
        """
        began = self._clock.mono()
        try:
            page = self._page()
        except SourceError:
            self._ask_version = self._ask_prometheus = True
            self._found_at = self._url
            raise
        if isinstance(page, EngineReading):
            return page
        text = page
        samples = self._parser.parse(text)
        if not samples.read_lines and samples.skipped_lines:
            raise self._not_metrics(f"no line of it is a metric (the first: {samples.first_skipped})")
        reading = self._read(samples, text)
        if reading.started_s is not None and reading.started_s != self._started_s:
            self._ask_version = True
            self._started_s = reading.started_s
        engine = engines.ENGINES.get(reading.engine)
        if self._ask_version and engine is not None and engine.version_paths:
            self._ask_version = False
            ends = began + self.deadline_s
            versions = (self._get_version(path, engine.version_field, ends) for path in engine.version_paths)
            self._version = next(filter(None, versions), None)
            reading = self._read(samples, text)
        return reading

    def abort(self) -> None:
        """Ends a poll that is under way in another thread."""
        self._http.abort()

    def close(self) -> None:
        """Closes the connection."""
        self._http.close()

    def _page(self) -> str | EngineReading:
        """The page's text, or the reading that a page of JSON makes."""
        answer = self._http.get(self._found_at, self.deadline_s)
        text = answer.body.decode("utf-8", "backslashreplace")
        if (inner := _string_in(text)) is not None:
            self._found_at = answer.url
            return inner
        if "json" in answer.content_type.lower() and (reading := _read_json(text)) is not None:
            return self._prometheus() or reading
        if (other := _other_content(answer.content_type, text)) is not None:
            raise self._not_metrics(f"the address gives {other}, not metrics", "give the engine's own address")
        self._found_at = answer.url
        return text

    def _prometheus(self) -> str | None:
        """The same server's page for Prometheus, if it has one: reading that takes nothing from other readers.

        One that isn't there is not asked for again in this life of the server.
        """
        if not self._ask_prometheus:
            return None
        self._ask_prometheus = False
        parts = split_http(self._found_at)
        beside = parts.path.rstrip("/").removesuffix("/metrics") + _PROMETHEUS
        url = urlunsplit((parts.scheme, parts.netloc, beside, parts.query, ""))
        try:
            answer = self._http.get(url, _BESIDE_DEADLINE_S)
        except SourceError:
            return None
        text = answer.body.decode("utf-8", "backslashreplace")
        if engines.recognise(text) is None:
            # Before the first request nothing is told there.
            self._ask_prometheus = _other_content(answer.content_type, text) is None
            return None
        self._found_at = answer.url
        return text

    def _read(self, samples: Samples, text: str) -> EngineReading:
        reading = engines.read(samples, text, self._version)
        if reading.first_skipped is None:
            return reading
        return replace(reading, first_skipped=self._http.clean(reading.first_skipped))

    def _get_version(self, path: str, field: str, ends_mono_s: float) -> str | None:
        """What the server says its version is; None where it does not say so at once."""
        parts = split_http(self._found_at)
        beside = parts.path.rstrip("/").removesuffix("/metrics").removesuffix("/prometheus") + path
        url = urlunsplit((parts.scheme, parts.netloc, beside, "", ""))
        try:
            answer = self._http.get(url, max(0.05, min(_BESIDE_DEADLINE_S, ends_mono_s - self._clock.mono())))
            version = json.loads(answer.body)[field]
        except (SourceError, ValueError, KeyError, TypeError, RecursionError):
            return None
        return printable(version, _LONGEST_VERSION) if isinstance(version, str) else None

    def _not_metrics(self, why: str, todo: str = "") -> SourceError:
        return SourceError(f"cannot read {self._http.clean(public_url(self._found_at))}", self._http.clean(why), todo)


def metrics_url(url: str) -> str:
    """The address of the metrics page of a server, or of the page itself.

    Raises:
        UsageError: it is no http(s) URL.
    """
    text = url.strip() if "://" in url else f"http://{url.strip()}"
    try:
        parts = split_http(text)
    except ValueError:
        raise UsageError(
            f"cannot use the address {public_url(text)!r}", "it is no http(s) URL", "write http://HOST:PORT"
        ) from None
    path = parts.path if parts.path.rstrip("/").endswith("/metrics") else parts.path.rstrip("/") + "/metrics"
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


def probe(url: str, timeout_s: float = 1.0) -> bool:
    """True when the metrics page there is that of a known engine; asked once, within `timeout_s`, without a key."""
    http = HttpReader()
    try:
        answer = http.get(metrics_url(url), timeout_s)
    except (SourceError, UsageError):
        return False
    finally:
        http.close()
    text = answer.body.decode("utf-8", "backslashreplace")
    return engines.recognise(_string_in(text) or text) is not None


def _string_in(text: str) -> str | None:
    """The page in one JSON string, as llama.cpp sent it in November 2025 (from b7010 on); None in any other."""
    if not text.startswith('"#'):
        return None
    try:
        page = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return page if isinstance(page, str) else None


def _read_json(text: str) -> EngineReading | None:
    try:
        return engines.read_json(json.loads(text))
    except (ValueError, RecursionError):
        return None


def _other_content(content_type: str, text: str) -> str | None:
    """What a page is that is not metrics; None when it may be metrics."""
    start = text[:64].lstrip()
    if "html" in content_type.lower() or start.startswith("<"):
        return "a web page (a sign-in?)"
    if "json" in content_type.lower() or start.startswith("["):
        return "JSON"
    return None
