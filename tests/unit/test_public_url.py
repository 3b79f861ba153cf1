"""No secret of a URL is shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputop_llm.redact import public_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("https://h/root/metrics", "https://h/root/metrics"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("http://user:hunter2@h:8000/x", "http://***@h:8000/x"),
        ("http://hunter2@h", "http://***@h"),
        ("http://h/metrics?token=hunter2&a=", "http://h/metrics?token=***&a=***"),
        ("http://h/metrics?hunter2", "http://h/metrics?***"),
        ("http://h/metrics#hunter2", "http://h/metrics"),
        ("http://[hunter2", "***"),
    ],
)
def test_user_password_query_and_fragment_are_blanked_and_the_rest_is_kept(url, shown):
    assert public_url(url) == shown


# A name is no secret: what is in front of the first "=" stays.
anything = st.text(st.characters(exclude_characters="&#"), max_size=20)


@given(user=st.text(st.characters(exclude_characters="/?#"), max_size=20), query=anything, fragment=anything)
def test_a_secret_in_user_query_or_fragment_is_never_in_what_is_shown(user, query, fragment):
    assert "s3cr3t" not in public_url(f"http://{user}s3cr3t@h:80/metrics?name{query}=s3cr3t&s3cr3t#{fragment}s3cr3t")
