"""Where a setting comes from, which one wins, and what is said of one that can't be."""

from __future__ import annotations

import pytest

from gputop_llm.config import Config, load
from gputop_llm.errors import ExitCode, UsageError


def refused(flags=None, env=None, file=None, **options) -> str:
    with pytest.raises(UsageError) as caught:
        load(flags or {}, env or {}, file, **options)
    assert caught.value.exit_code == ExitCode.USAGE
    return str(caught.value)


def test_a_relative_ca_file_is_found_from_another_directory_as_well(tmp_path, monkeypatch):
    (tmp_path / "ca.pem").write_text("certificates")
    monkeypatch.chdir(tmp_path)

    assert load({"ca_file": "ca.pem"}, {}).ca_file == str(tmp_path / "ca.pem")


def test_the_defaults_are_one_second_and_a_window_of_ten():
    config = load({}, {})
    assert config == Config()
    assert (config.period_s, config.window_s) == (1.0, 10.0)


def test_flags_beat_the_environment_which_beats_the_file_which_beats_the_defaults(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text("period_s = 2\nwindow_s = 20\nascii = true\n")
    env = {"GPUTOP_LLM_PERIOD_S": "3", "GPUTOP_LLM_WINDOW_S": "30"}
    config = load({"period_s": 4.0, "url": None}, env, file)
    assert (config.period_s, config.window_s, config.ascii, config.url) == (4.0, 30.0, True, None)
    assert config.origins == {"period_s": "--period", "window_s": "GPUTOP_LLM_WINDOW_S", "ascii": str(file)}


def test_an_empty_variable_is_not_set():
    assert load({}, {"GPUTOP_LLM_PERIOD_S": ""}).period_s == 1.0


def test_a_file_that_is_not_there_is_no_error_unless_the_user_named_it(tmp_path):
    missing = tmp_path / "none.toml"
    assert load({}, {}, missing) == Config()
    assert refused(file=missing, must_exist=True) == f"cannot read {missing}: there is no such file"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("period_s = ", "not valid TOML"),
        ("perod_s = 1", "unknown setting 'perod_s'"),
        ("api_key = 'k'", "unknown setting 'api_key'"),
        ("pid = 4", "unknown setting 'pid'"),
        ("period_s = 'soon'", "period_s must be a number: got 'soon'"),
        ("slo_ttft_s = 1" + 400 * "0", "slo_ttft_s must be a number: got 1000"),
        ("gpu = 1.5", "gpu must be a whole number: got 1.5"),
        ("gpu = true", "gpu must be a whole number: got True"),
        ("ascii = 'perhaps'", "ascii must be true or false: got 'perhaps'"),
        ("url = 8000", "url must be text: got 8000"),
        ("window_s = nan", "the window must be between 1 s and 600 s"),
    ],
)
def test_a_wrong_file_is_one_sentence_that_names_file_and_setting(tmp_path, text, said):
    file = tmp_path / "config.toml"
    file.write_text(text)
    sentence = refused(file=file)
    assert said in sentence
    assert str(file) in sentence


def test_a_file_that_is_not_text_is_refused(tmp_path):
    file = tmp_path / "config.toml"
    file.write_bytes(b"\xff\xfe\x00")
    assert f"cannot read {file}: it is not text in UTF-8" in refused(file=file)
    assert str(tmp_path) in refused(file=tmp_path)


def test_a_file_that_is_nested_without_end_is_refused(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text(f"url = {'[' * 100_000}")
    assert f"cannot read {file}: it is not valid TOML" in refused(file=file)


def test_a_default_file_that_may_not_be_read_says_how_to_start_without_it(tmp_path):
    assert refused(file=tmp_path).endswith("; --config /dev/null starts without it")


def test_a_folder_that_is_a_file_has_no_config_file_in_it(tmp_path):
    (tmp_path / "config").write_text("")
    file = tmp_path / "config" / "config.toml"
    assert load({}, {}, file) == Config()
    with pytest.raises(UsageError, match="there is no such file"):
        load({}, {}, file, must_exist=True)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"period_s": 0.1}, "--period: the period must be between 0.25 s and 3600 s: got 0.1"),
        ({"period_s": 1e9}, "--period"),
        ({"window_s": 0.5}, "--window: the window must be between 1 s and 600 s"),
        ({"gpu": -1}, "--gpu: gpu can't be negative"),
        ({"pid": -1}, "--pid: pid can't be negative"),
        ({"ca_file": "/nowhere/ca.pem"}, "--ca-file: cannot read /nowhere/ca.pem: No such file or directory"),
        ({"api_key_file": "/nowhere/key"}, "cannot read the API key from /nowhere/key: No such file or directory"),
        ({"api_key_file": "a\0b"}, "cannot read the API key from a\0b: embedded null byte"),
        ({"ca_file": "a\0b"}, "--ca-file: cannot read a\0b: embedded null byte"),
        ({"ca_file": "~nobody-at-all/x"}, "cannot read ~nobody-at-all/x: could not determine home directory"),
        ({"api_key_file": "~nobody-at-all/x"}, "could not determine home directory"),
    ],
)
def test_a_value_out_of_range_is_one_sentence_that_names_its_flag(flags, said):
    assert said in refused(flags)


@pytest.mark.parametrize("url", ["http://h:8000", "https://h", "http://[::1]:8000/metrics", "http://h/prefix"])
def test_a_whole_url_is_taken_as_it_is(url):
    assert load({"url": url}, {}).url == url


def test_host_and_port_are_enough_for_a_url():
    assert load({"url": "localhost:8000"}, {}).url == "http://localhost:8000"


@pytest.mark.parametrize(
    "url", ["ftp://h", "http://", "http://h:notaport", "http://[::1", "file:///etc/passwd", "http://h:0"]
)
def test_a_url_that_can_not_be_asked_is_refused_with_how_to_give_one(url):
    assert "http://HOST:PORT" in refused({"url": url})


def test_a_url_with_a_password_is_refused_with_where_to_put_it():
    sentence = refused({"url": "http://user:hunter2@h:8000"})
    assert "GPUTOP_LLM_API_KEY" in sentence
    assert "hunter2" not in sentence


def test_a_refused_url_does_not_show_its_password():
    assert "hunter2" not in refused({"url": "ftp://u:hunter2@h/?token=hunter2"})


def test_the_api_key_comes_from_the_environment_or_from_a_file(tmp_path):
    file = tmp_path / "key"
    file.write_text("sk-from-file\n")
    assert load({}, {"GPUTOP_LLM_API_KEY": "sk-env"}).api_key == "sk-env"
    assert load({"api_key_file": str(file)}, {}).api_key == "sk-from-file"
    assert load({"api_key_file": str(file)}, {"GPUTOP_LLM_API_KEY": "sk-env"}).api_key == "sk-env"


def test_the_api_key_is_never_shown_by_a_config():
    assert "sk-env" not in repr(load({}, {"GPUTOP_LLM_API_KEY": "sk-env"}))


def test_an_empty_key_file_is_refused(tmp_path):
    (tmp_path / "key").write_text("\n")
    why = refused({"api_key_file": str(tmp_path / "key")})
    assert why == f"cannot read the API key from {tmp_path / 'key'}: the file is empty"


def test_a_key_of_blanks_is_refused():
    assert refused(env={"GPUTOP_LLM_API_KEY": " "}) == "GPUTOP_LLM_API_KEY: the API key can't be used: it is empty"


@pytest.mark.parametrize("key", ["sk-secret\r\nX-Other: 1", "sk-secret\x00", "sk-secret-ü"])
def test_a_key_that_no_header_can_hold_is_refused_without_being_shown(key):
    sentence = refused(env={"GPUTOP_LLM_API_KEY": key})
    assert "GPUTOP_LLM_API_KEY" in sentence
    assert "secret" not in sentence


def test_thresholds_are_a_table_of_the_file_with_or_without_quotes(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text('period_s = 2\n[thresholds]\n"kv-pressure.kv_pct" = 98\nttft-high.p95_s = 0.5\n')
    config = load({}, {}, file)
    assert config.thresholds == {"kv-pressure.kv_pct": 98.0, "ttft-high.p95_s": 0.5}
    assert config.origins["thresholds"] == str(file)
    assert load({}, {}).thresholds == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("thresholds = 5", "thresholds must be a table of numbers: got 5"),
        ("[thresholds]\na.b = 'x'", "the threshold a.b must be a number: got 'x'"),
        ("[thresholds]\na.b = true", "the threshold a.b must be a number: got True"),
        ("[thresholds]\na.b = 1" + 400 * "0", "the threshold a.b must be a number: got 1000"),
        ("[thresholds]\na.b = nan", "the threshold a.b must be a number: got nan"),
        ("[thresholds]\na.b = [1]", "the threshold a.b must be a number: got [1]"),
        ("slo_ttft_s = 0", "an SLO must be above 0 s"),
        ("webhook = 'http://h/'", "unknown setting 'webhook'"),
    ],
)
def test_a_wrong_threshold_or_slo_is_one_sentence_that_names_it(tmp_path, text, said):
    file = tmp_path / "config.toml"
    file.write_text(text)
    assert said in refused(file=file)


def test_slos_are_flags_variables_or_in_the_file():
    config = load({"slo_ttft_s": "0.5"}, {"GPUTOP_LLM_SLO_TTFT_S": "9", "GPUTOP_LLM_SLO_TPOT_S": "0.05"})
    assert (config.slo_ttft_s, config.slo_tpot_s) == (0.5, 0.05)
    assert config.origins == {"slo_ttft_s": "--slo-ttft", "slo_tpot_s": "GPUTOP_LLM_SLO_TPOT_S"}
    for value in ("0", "-1", "nan", "inf", "soon"):
        assert "--slo-tpot" in refused({"slo_tpot_s": value})


def test_the_webhook_comes_from_the_environment_or_from_a_file_and_is_never_shown(tmp_path):
    file = tmp_path / "hook"
    file.write_text("http://h/SECRET\nX-Key: SECRET\n")
    from_file = load({"webhook_file": str(file)}, {})
    assert from_file.webhook == "http://h/SECRET\nX-Key: SECRET"
    assert from_file.origins["webhook"] == "--webhook-file"
    assert load({"webhook_file": str(file)}, {"GPUTOP_LLM_WEBHOOK": "http://env"}).webhook == "http://env"
    assert "SECRET" not in repr(from_file)
    assert "cannot read the webhook from /nowhere" in refused({"webhook_file": "/nowhere"})
