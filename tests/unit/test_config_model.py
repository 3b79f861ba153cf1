"""What the user may say of the model."""

from __future__ import annotations

import pytest

from gputop_llm.config import load
from gputop_llm.errors import UsageError


@pytest.mark.parametrize(
    ("given", "params"),
    [
        ("8B", 8e9),
        ("70.6b", 70.6e9),
        ("671 B", 671e9),
        ("1T", 1e12),
        ("500M", 5e8),
        ("8e9", 8e9),
        ("8030261248", 8030261248),
    ],
)
def test_the_number_of_parameters_as_people_write_it(given, params):
    assert load({"params": given}, env={}).params == params


def test_it_may_stand_in_the_environment_or_the_file(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text('params = "8B"\nbytes_per_param = 0.5\n')
    found = load({}, env={}, file=file)
    assert (found.params, found.bytes_per_param) == (8e9, 0.5)
    found = load({"bytes_per_param": "2"}, env={"GPUTOP_LLM_PARAMS": "70B"}, file=file)
    assert (found.params, found.bytes_per_param) == (70e9, 2.0)
    assert found.origins == {"params": "GPUTOP_LLM_PARAMS", "bytes_per_param": "--bytes-per-param"}


@pytest.mark.parametrize("given", ["", "B", "8Q", "8BB", "-8B", "-1", "0", "nan", "inf", "8", "1e20", "eight"])
def test_no_number_of_parameters(given):
    with pytest.raises(UsageError, match="params"):
        load({"params": given}, env={})


@pytest.mark.parametrize("given", ["0", "-1", "16", "nan", "fp8"])
def test_no_bytes_per_parameter(given):
    with pytest.raises(UsageError, match="bytes_per_param"):
        load({"bytes_per_param": given}, env={})
