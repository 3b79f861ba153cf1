"""Takes secrets out of what is shown."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

HIDDEN = "***"


def public_url(url: str) -> str:
    """The URL with its user, password and query values blanked; one that can't be parsed is blanked wholly."""
    try:
        parts = urlsplit(url)
        netloc = parts.netloc.rpartition("@")
    except ValueError:
        return HIDDEN
    query = urlencode([(name, HIDDEN) for name, _ in parse_qsl(parts.query, keep_blank_values=True)], safe="*")
    shown = (HIDDEN + "@" if netloc[1] else "") + netloc[2]
    return urlunsplit((parts.scheme, shown, parts.path, query, ""))
