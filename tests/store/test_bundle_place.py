"""Where captures go that were not given another place."""

from __future__ import annotations

from gputop_llm import paths


def checkout(tmp_path, monkeypatch, *folders):
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.setattr(paths, "__file__", str(tmp_path / "gputop_llm" / "paths.py"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


def test_run_from_a_checkout_they_stay_in_it(tmp_path, monkeypatch):
    checkout(tmp_path, monkeypatch, ".git", "captures")

    assert paths.captures_folder() == tmp_path / "captures" / "local"


def test_a_work_tree_is_a_checkout_too(tmp_path, monkeypatch):
    checkout(tmp_path, monkeypatch, "captures")
    (tmp_path / ".git").write_text("gitdir: elsewhere")

    assert paths.captures_folder() == tmp_path / "captures" / "local"


def test_an_installed_program_keeps_them_with_the_users_data(tmp_path, monkeypatch):
    checkout(tmp_path, monkeypatch, "captures")

    assert paths.captures_folder() == tmp_path / "data" / "gputop-llm" / "captures"
