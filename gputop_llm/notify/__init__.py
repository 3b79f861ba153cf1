"""Telling others what was raised and cleared: a command, a webhook."""
