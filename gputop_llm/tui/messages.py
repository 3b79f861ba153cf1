"""What reaches the app from outside its own thread."""

from __future__ import annotations

from textual.message import Message


class FrameReady(Message, bubble=False):
    """There is a new frame; the app takes the newest one from the session.

    A queued one replaces this: an app that was kept busy shows the newest frame
    once, instead of all that it missed.
    """

    def can_replace(self, message: Message) -> bool:
        return isinstance(message, FrameReady)
