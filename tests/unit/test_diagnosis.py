"""From frames to what is shown, stored and told: the rules' place in a session."""

from __future__ import annotations

import functools
import json
import sys
import time
from pathlib import Path

import pytest

from gputop_llm import diagnosis as diagnosis_module
from gputop_llm import paths
from gputop_llm.config import Config, load
from gputop_llm.diagnosis import Diagnosis, limits
from gputop_llm.errors import UsageError
from gputop_llm.model import Frame
from gputop_llm.sampling.history import History
from gputop_llm.session import Session
from gputop_llm.store import baselines
from gputop_llm.symptoms import catalogue
from gputop_llm.symptoms.checks import Check, State
from gputop_llm.symptoms.engine import Rule
from gputop_llm.symptoms.limits import Hold
from gputop_llm.symptoms.rules import kv
from tests.support.fake_sources import FakeNode, a_target, until
from tests.support.http_server import HttpServer, page
from tests.support.symptom_frames import KEY, MODEL, busy
from tests.support.symptom_reports import a_symptom

STORED = ("vllm", MODEL, "1x NVIDIA H200")


@pytest.fixture(autouse=True)
def _own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def only_kv(monkeypatch):
    """One rule is enough where it doesn't matter which."""
    monkeypatch.setattr(catalogue, "RULES", kv.RULES)


@pytest.fixture
def judging():
    """Makes diagnoses, and closes them at the end."""
    made: list[Diagnosis] = []

    def make(config: Config | None = None, simulated: str | None = None):
        history = History()
        made.append(Diagnosis(config or Config(), history, simulated))

        def judge(frames: list[Frame]) -> list[Frame]:
            judged = []
            for frame in frames:
                history.append(frame)
                judged.append(made[-1].of(frame))
            return judged

        judge.close = functools.partial(made[-1].close, 5.0)
        judge.history = history
        return judge

    yield make
    for one in made:
        one.close(1.0)


def full_for(seconds: int, then: int) -> list[Frame]:
    return busy(seconds + then, live={"kv_usage_pct": lambda s: 99.0 if s < seconds else 40.0})


def test_each_frame_says_what_the_rules_say_of_it(judging):
    judge = judging()
    frames = judge(full_for(30, 20))
    assert [s.id for s in frames[0].symptoms.active] == []
    assert [s.id for s in frames[0].symptoms.pending] == ["kv-pressure"]
    assert "kv-pressure" in [s.id for s in frames[20].symptoms.active]
    assert "kv-pressure" not in [s.id for s in frames[-1].symptoms.active]
    (held,) = [h for h in frames[-1].symptoms.log if h.id == "kv-pressure"]
    assert held.since_s == frames[0].at_s
    assert frames[40].at_s <= held.until_s <= frames[42].at_s
    assert all(f.symptoms is None for f in judge.history.frames(120))


def test_trends_come_from_the_history(judging, only_kv):
    frames = judging()(busy(60, live={"kv_usage_pct": lambda s: 95.5 + s / 60 * 4}))
    (symptom,) = frames[-1].symptoms.active
    assert symptom.trend == "steady"
    frames = judging(Config(thresholds={"kv-pressure.kv_pct": 30.0}))(
        busy(60, live={"kv_usage_pct": lambda s: 31.0 + s})
    )
    assert frames[-1].symptoms.active[0].trend == "rising"


def test_rules_that_fail_cost_the_symptoms_and_not_the_frame(judging, monkeypatch, caplog):
    def broken(*_):
        raise RuntimeError("no")

    judge = judging()
    monkeypatch.setattr("gputop_llm.symptoms.engine.Composer.compose", broken)
    (frame,) = judge(busy(1))
    assert frame.symptoms is None
    assert frame.engines
    assert "a frame could not be judged" in caplog.text


def test_one_rule_with_a_bug_is_told_and_stops_no_other(judging, monkeypatch, caplog):
    def broken(*_):
        yield from ()
        raise ZeroDivisionError

    monkeypatch.setattr(catalogue, "RULES", (Rule("bad", "bad", broken), *kv.RULES))
    frames = judging()(full_for(20, 0))
    assert [s.id for s in frames[-1].symptoms.active] == ["kv-pressure"]
    (unknown,) = frames[-1].symptoms.cant_tell
    assert (unknown.id, unknown.needs) == ("bad", "the rule failed: ZeroDivisionError (the log has the details)")
    assert caplog.text.count("the rule bad failed") == 1


def test_evidence_with_a_bug_costs_that_symptom_only(judging, monkeypatch, caplog):
    def half_broken(view, in_force):
        for check in kv.kv_pressure(view, in_force):
            yield check._replace(rule="bad", make=lambda: 1 / 0)

    monkeypatch.setattr(catalogue, "RULES", (Rule("bad", "bad", half_broken), *kv.RULES))
    frames = judging()(full_for(20, 0))
    assert [s.id for s in frames[-1].symptoms.active] == ["kv-pressure"]
    assert caplog.text.count("the evidence of bad could not be gathered") == 1


# -- thresholds -------------------------------------------------------------------


def test_thresholds_come_from_the_file_and_slos_from_flag_environment_or_file(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text('slo_tpot_s = 0.07\n[thresholds]\n"kv-pressure.kv_pct" = 98\nkv-pressure.for_s = 30\n')
    in_force = limits(load({"slo_ttft_s": "0.5"}, {}, file))
    assert in_force.value("ttft-high.p95_s") == 0.5
    assert in_force.origin("ttft-high.p95_s") == "SLO --slo-ttft"
    assert in_force.value("tpot-high.p95_s") == 0.07
    assert in_force.origin("tpot-high.p95_s") == f"SLO {file}"
    assert (in_force.value("kv-pressure.kv_pct"), in_force.hold("kv-pressure")[0]) == (98, 30)
    assert in_force.overridden == (
        f"kv-pressure.for_s = 30 ({file})",
        f"kv-pressure.kv_pct = 98 ({file})",
        f"tpot-high.p95_s = 0.07 (SLO {file})",
        "ttft-high.p95_s = 0.5 (SLO --slo-ttft)",
    )
    assert (
        limits(load({}, {"GPUTOP_LLM_SLO_TTFT_S": "2"}, None)).origin("ttft-high.p95_s") == "SLO GPUTOP_LLM_SLO_TTFT_S"
    )
    assert limits(Config()).overridden == ()


def test_an_slo_wins_over_the_same_threshold_in_the_table_of_the_file(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text('[thresholds]\n"ttft-high.p95_s" = 3\n')
    assert limits(load({}, {}, file)).value("ttft-high.p95_s") == 3
    assert limits(load({"slo_ttft_s": 0.5}, {}, file)).value("ttft-high.p95_s") == 0.5


def test_a_threshold_that_does_not_exist_is_one_sentence_with_the_file(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text('[thresholds]\n"kv-pressure.kv" = 98\n')
    with pytest.raises(UsageError) as caught:
        Diagnosis(load({}, {}, file), History(), None)
    assert caught.value.sentence() == f"unknown threshold 'kv-pressure.kv' in {file}; the names are in docs/symptoms.md"


@pytest.mark.parametrize("name", ["kv-pressure.for_s", "kv-pressure.clear_s"])
def test_a_time_below_zero_is_refused_with_its_origin(tmp_path, name):
    file = tmp_path / "config.toml"
    file.write_text(f'[thresholds]\n"{name}" = -3\n')
    with pytest.raises(UsageError) as caught:
        limits(load({}, {}, file))
    assert caught.value.sentence() == f"{file}: {name} is a time and can't be below 0 s: got -3"


def test_what_is_overridden_is_in_every_report(judging, only_kv):
    (frame,) = judging(Config(thresholds={"kv-pressure.kv_pct": 98.0}, origins={"thresholds": "my.toml"}))(busy(1))
    assert frame.symptoms.overridden == ("kv-pressure.kv_pct = 98 (my.toml)",)


# -- baselines --------------------------------------------------------------------


def test_what_was_learnt_is_stored_at_the_end_and_known_to_the_next_run(judging, only_kv, monkeypatch):
    judge = judging()
    judge(busy(300))
    judge.close()
    assert baselines.load(paths.baselines_folder(), STORED)
    seen: list[float | None] = []

    def look(view, _limits):
        seen.append(view.baseline(view.engines[0], view.engines[0].models[0], "itl_p95_s"))
        return ()

    monkeypatch.setattr(catalogue, "RULES", (Rule("look", "look", look),))
    again = judging()
    until(lambda: (again(busy(1)), seen[-1])[1])
    assert seen[-1] == pytest.approx(0.028, rel=1e-3)


def test_it_is_stored_every_few_minutes_too(judging, only_kv):
    judge = judging()
    judge(busy(500))
    until(lambda: baselines.load(paths.baselines_folder(), STORED))


def test_of_a_simulated_node_nothing_is_stored_or_read(judging, only_kv):
    judge = judging(simulated="simulated: healthy, seed 7")
    judge(busy(500))
    judge.close()
    assert not paths.baselines_folder().exists()


def test_a_user_without_a_home_directory_learns_all_the_same(judging, only_kv, monkeypatch):
    monkeypatch.setattr(paths, "baselines_folder", lambda: None)
    judge = judging()
    assert all(frame.symptoms is not None for frame in judge(busy(200)))
    judge.close()


def test_a_stored_baseline_that_is_none_is_forgotten_with_a_line_in_the_log(judging, only_kv, caplog):
    folder = paths.baselines_folder()
    baselines.save(folder, STORED, [{"load": "heavy"}])
    judge = judging()
    until(lambda: (judge(busy(1)), "it is learnt anew" in caplog.text)[1])
    assert str(baselines.file_of(folder, STORED)) in caplog.text
    assert judge(busy(1))[0].symptoms is not None


# -- telling others -----------------------------------------------------------------


def test_a_command_is_run_once_when_raised_and_once_when_cleared(judging, only_kv, tmp_path):
    out = tmp_path / "events"
    script = tmp_path / "script.py"
    script.write_text(f"import sys\nopen({str(out)!r}, 'a').write(sys.stdin.read() + '\\n')\n")
    judge = judging(Config(exec=f"{sys.executable} {script}"))
    judge(full_for(80, 0))
    until(lambda: out.exists() and out.read_text().count("\n") == 1)
    judge(full_for(80, 60)[80:])
    until(lambda: out.read_text().count("\n") == 2)
    judge.close()
    events = [json.loads(line) for line in out.read_text().splitlines()]
    assert [e["event"] for e in events] == ["raised", "cleared"]
    assert {e["symptom"]["key"] for e in events} == {f"kv-pressure@engine:{KEY}"}
    assert events[0]["at_s"] - events[0]["symptom"]["since_s"] == 10


def test_a_webhook_is_posted_to_once_when_raised_and_once_when_cleared(judging, only_kv):
    with HttpServer({"/hook": page("ok")}) as server:
        judge = judging(Config(webhook=f"{server.url}/hook\nX-Key: k"))
        judge(full_for(80, 60))
        until(lambda: len(server.requests) == 2)
        judge.close()
        assert [json.loads(r.body)["event"] for r in server.requests] == ["raised", "cleared"]
        assert {r.headers["x-key"] for r in server.requests} == {"k"}


def test_a_command_that_hangs_holds_up_no_frame(judging, only_kv):
    judge = judging(Config(exec="sleep 600"))
    frames = judge(full_for(80, 60))
    assert all(f.symptoms is not None for f in frames)
    judge.close()


def test_a_command_or_webhook_that_can_not_be_used_is_told_at_the_start():
    for config in (Config(exec="no-such-program"), Config(webhook="nonsense")):
        with pytest.raises(UsageError):
            Diagnosis(config, History(), None)


# -- in a session -------------------------------------------------------------------


def test_the_frames_of_a_session_are_judged(only_kv):
    session = Session(Config(period_s=0.05), FakeNode((a_target(),)).sources)
    session.start()
    try:
        frame = until(lambda: (f := session.latest) and f.symptoms and f.symptoms.judged and f)
    finally:
        session.stop()
    assert frame.symptoms.active == ()
    assert paths.baselines_folder() is not None


def test_stop_returns_within_a_second_while_a_command_hangs_and_the_command_ends(monkeypatch, tmp_path):
    started = tmp_path / "pid"

    def run(view, _limits):
        for engine in view.engines:
            yield Check("kv-pressure", engine.subject, State.RAISED, make=a_symptom)

    monkeypatch.setattr(catalogue, "RULES", (Rule("kv-pressure", "", run),))
    monkeypatch.setattr(diagnosis_module, "HOLDS", (Hold("kv-pressure", 0.0, 0.0),))
    config = Config(period_s=0.05, exec=f"sh -c 'echo $$ > {started}.new; mv {started}.new {started}; sleep 600'")
    session = Session(config, FakeNode((a_target(),)).sources)
    session.start()
    pid = int(until(lambda: started.exists() and started.read_text()))
    began = time.monotonic()
    session.stop()
    assert time.monotonic() - began < 1.5
    until(lambda: not Path(f"/proc/{pid}").exists())
