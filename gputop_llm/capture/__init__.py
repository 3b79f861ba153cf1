"""Captures: what one will do, the worker that takes it under guards, what a crash leaves, which routes are open."""
