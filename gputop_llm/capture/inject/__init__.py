"""Injection: the client library in a running, unprepared process, by ptrace, loaded on a thread of its own."""

from __future__ import annotations

from gputop_llm.capture.inject.channel import Channel
from gputop_llm.capture.inject.injection import inject, mapped_clients
from gputop_llm.capture.inject.openness import openness
from gputop_llm.capture.inject.refused import InjectionRefused, NotBorrowed

__all__ = ["Channel", "InjectionRefused", "NotBorrowed", "inject", "mapped_clients", "openness"]
