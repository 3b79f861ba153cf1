"""Runs a hot kernel again without the server: the op that launches it, in a process of its own.

A record names the kernel (`hot`); the op behind it comes from the record's operators (`from_ops`) or from what the
model must compute (`candidates`); a script of its own runs them (`script`, `run`); and only what launches the very same
kernel counts (`match`).
"""
