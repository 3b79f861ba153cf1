"""`gpus`: the table of GPUs without a GPU, as text and as JSON."""

from __future__ import annotations

import json

import pytest

from gputop_llm.cli import main
from gputop_llm.gpus import all_specs


def printed(capsys, *arguments: str) -> str:
    assert main(["gpus", *arguments]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    return output.out


def test_without_a_name_it_is_a_table_of_all(capsys):
    out = printed(capsys)
    assert all(spec.name in out for spec in all_specs())
    assert "dense" in out


@pytest.mark.parametrize("name", [["h200"], ["NVIDIA", "H200"], ["nvidia h200"]])
def test_a_name_gives_all_figures_with_their_sources(capsys, name):
    out = printed(capsys, *name)
    assert out.startswith("H200 SXM 141 GB\n")
    assert "4.8 TB/s" in out
    assert "Sources" in out


def test_json_is_a_list_in_si_units(capsys):
    found = json.loads(printed(capsys, "--json", "h200"))
    assert found[0]["mem_bytes_per_s"] == 4.8e12
    assert len(json.loads(printed(capsys, "--json"))) == len(all_specs())


def test_a_gpu_that_is_not_in_the_table_is_exit_code_3(capsys):
    assert main(["gpus", "voodoo", "2"]) == 3
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == "no GPU of the table is called 'voodoo 2'; `gputop-llm gpus` lists them\n"
