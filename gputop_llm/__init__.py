"""gputop-llm: find a running LLM server, watch it live, and say what is slow and why."""

__version__ = "0.1.0"
