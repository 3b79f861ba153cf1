"""Takes the secrets out of a URL before it is shown."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

HIDDEN = "***"


def public_url(url: str) -> str:
    """The URL with user, password, query values and fragment blanked; one that can't be parsed is blanked wholly."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return HIDDEN
    pairs = (pair.partition("=") for pair in parts.query.split("&") if pair)
    # A word without "=" may be the token itself.
    query = "&".join(f"{name}={HIDDEN}" if equals else HIDDEN for name, equals, _ in pairs)
    _, at, host = parts.netloc.rpartition("@")
    return urlunsplit((parts.scheme, f"{HIDDEN}{at}{host}" if at else host, parts.path, query, ""))
