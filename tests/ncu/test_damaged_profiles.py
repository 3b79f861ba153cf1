"""Damaged, cut and hostile profiles: one clear sentence each, never a traceback and never a wrong verdict."""

from __future__ import annotations

import builtins
import importlib
import random
import re

import pytest

from gputop_llm.cli import main
from gputop_llm.ncu.read import is_profile
from tests.support.kernels import ALONE, DETAILS, FULL, RAW, TINY

HOSTILE = "\x1b[31mgemm\x1b]0;owned\x07[bold]x[/bold]<script>alert(1)</script>|[y](http://e.x)`z`\u202eevil"


def said(capsys, path, *more):
    code = main(["verdict", str(path), *more])
    out, err = capsys.readouterr()
    assert "Traceback" not in out + err
    return code, out, err


@pytest.mark.parametrize("part", [0.0005, 0.01, 0.2, 0.5, 0.8, 0.999])
@pytest.mark.parametrize("source", [ALONE, TINY], ids=["2025", "2022"])
def test_a_report_that_ends_too_early_is_refused(capsys, tmp_path, source, part):
    data = source.read_bytes()
    path = tmp_path / "cut.ncu-rep"
    path.write_bytes(data[: max(5, int(part * len(data)))])
    code, out, err = said(capsys, path)

    assert (code, out) == (1, "")
    assert "damaged or ends too early" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("seed", range(8))
def test_a_report_with_changed_bytes_is_judged_or_refused(capsys, tmp_path, seed):
    chance = random.Random(seed)
    data = bytearray(TINY.read_bytes())
    for _ in range(chance.choice((1, 10, 200))):
        data[chance.randrange(4, len(data))] = chance.randrange(256)
    path = tmp_path / "changed.ncu-rep"
    path.write_bytes(data)
    code, out, err = said(capsys, path)

    assert code in (0, 1, 4)
    assert bool(out) != bool(err)
    assert err.count("\n") <= 1


def test_a_report_whose_compression_is_damaged_is_refused(capsys, tmp_path):
    path = tmp_path / "cut.ncu-rep.xz"
    path.write_bytes(FULL.read_bytes()[:40_000])
    code, out, err = said(capsys, path)

    assert (code, out) == (1, "")
    assert "ends too early" in err


@pytest.mark.parametrize("source", [DETAILS, RAW], ids=["details", "raw"])
@pytest.mark.parametrize("part", [0.02, 0.3, 0.7])
def test_a_table_that_ends_too_early_is_judged_by_what_is_there_or_refused(capsys, tmp_path, source, part):
    data = source.read_bytes()
    path = tmp_path / "cut.csv"
    path.write_bytes(data[: int(part * len(data))])
    code, out, err = said(capsys, path)

    assert (code in (0, 4) and out) or (code == 1 and err.count("\n") == 1)


def test_a_table_without_a_row_is_refused(capsys, tmp_path):
    path = tmp_path / "empty.csv"
    path.write_bytes(DETAILS.read_bytes().splitlines(keepends=True)[0])
    code, out, err = said(capsys, path)

    assert (code, out) == (1, "")
    assert "no kernel was profiled" in err


def test_an_empty_file_is_refused(capsys, tmp_path):
    path = tmp_path / "empty.ncu-rep"
    path.touch()

    assert said(capsys, path)[:2] == (1, "")


def test_text_that_mentions_ncu_is_no_profile(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("we ran ncu and saw ==PROF== Connected in its output\n", encoding="utf-8")

    assert not is_profile(path)


def test_without_nvidias_reader_a_report_says_what_to_install_or_run(capsys, monkeypatch):
    real = importlib.import_module
    monkeypatch.setattr(
        importlib,
        "import_module",
        lambda name: builtins.__import__("no_such_module") if name == "ncu_report" else real(name),
    )
    code, out, err = said(capsys, ALONE)

    assert (code, out) == (1, "")
    assert "pip install 'gputop-llm[ncu]'" in err
    assert "--page raw --csv" in err


@pytest.mark.parametrize("form", [(), ("--markdown",), ("--json",)])
def test_hostile_names_are_shown_inert(capsys, tmp_path, form):
    path = tmp_path / "names.csv"
    name = HOSTILE.replace('"', '""')
    path.write_text(RAW.read_text(encoding="utf-8").replace("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT", name), "utf-8")
    code, out, err = said(capsys, path, *form)

    assert code == 0, err
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", out + err)
    if form == ("--markdown",):
        assert "<" not in out
        assert not re.search(r"(?<!\\)\[y", out)
