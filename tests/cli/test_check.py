"""`check`: one line per symptom and the exit codes of monitoring plugins, whatever happens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gputop_llm import diagnosis
from gputop_llm import node as node_module
from gputop_llm.cli import main
from gputop_llm.commands import check
from gputop_llm.commands.check import Status, verdict
from gputop_llm.config import Config
from gputop_llm.errors import SourceError
from gputop_llm.model import TargetList
from gputop_llm.model.symptom import CantTell, Severity, Subject
from gputop_llm.symptoms import catalogue
from gputop_llm.symptoms.checks import Check, State
from gputop_llm.symptoms.engine import Rule
from tests.support import frames
from tests.support.fake_sources import FakeNode, a_target
from tests.support.symptom_reports import a_report, a_symptom

LOADED = frames.one_gpu_loaded()
NOTE = a_symptom("bandwidth-bound", Severity.NOTE, headline="DRAM 82 % busy: normal for decode")
WARNING = a_symptom("ttft-high", Severity.WARNING, headline="TTFT p95 4.2 s", root="kv-pressure@engine:x")
CRITICAL = a_symptom("kv-pressure", Severity.CRITICAL, headline="KV cache 99 % full, 7 waiting")


def status(*active, least: Severity = Severity.NOTE, frame=LOADED) -> Status:
    return verdict(replace(frame, symptoms=a_report(*active)), Config(), True, least).status


# -- what a frame amounts to --------------------------------------------------------


@pytest.mark.parametrize(
    ("active", "expected"),
    [
        ((), Status.OK),
        ((NOTE,), Status.OK),
        ((WARNING,), Status.WARNING),
        ((NOTE, WARNING), Status.WARNING),
        ((WARNING, CRITICAL), Status.CRITICAL),
    ],
)
def test_the_worst_symptom_decides(active, expected):
    assert status(*active) == expected


def test_the_codes_are_those_of_monitoring_plugins():
    assert [int(s) for s in Status] == [0, 1, 2, 3]


def test_less_severe_symptoms_do_not_count_when_only_worse_ones_are_asked_for():
    assert status(WARNING, least=Severity.CRITICAL) == Status.OK
    result = verdict(replace(LOADED, symptoms=a_report(WARNING, CRITICAL)), Config(), True, Severity.CRITICAL)
    assert [s.id for s in result.report.active] == ["kv-pressure"]


UNREADABLE = replace(LOADED, gpus=frames.part(LOADED.gpus.value, error="the driver is gone"))


def test_what_could_not_be_read_is_unknown_unless_something_is_known_to_be_wrong():
    assert status(frame=UNREADABLE) == status(NOTE, frame=UNREADABLE) == Status.UNKNOWN
    assert status(CRITICAL, frame=UNREADABLE) == Status.CRITICAL
    assert status(WARNING, frame=UNREADABLE, least=Severity.CRITICAL) == Status.UNKNOWN


def test_a_neighbours_symptom_is_no_matter_of_the_engine_that_was_asked_for():
    (own,) = LOADED.targets.value.targets
    beside = replace(own, key="700@1", processes=(replace(own.processes[0], pid=700, nvml_pid=700, gpus=(1,)),))
    shared = replace(LOADED, targets=frames.part(TargetList((own, beside))))
    of = {key: replace(CRITICAL, subject=Subject(key, key)) for key in ("engine:700@1/rank:1", "gpu:1", "gpu:0")}

    def codes(config: Config) -> list[int]:
        reports = [replace(shared, symptoms=a_report(one)) for one in (*of.values(), CRITICAL)]
        return [int(verdict(one, config, True).status) for one in reports]

    assert codes(Config()) == [2, 2, 2, 2]
    assert codes(Config(pid=own.pids[0])) == [0, 0, 2, 2]
    assert codes(Config(pid=700)) == [2, 2, 0, 2], "of an engine that is no target any more it can't be told"


def test_what_is_held_back_is_told_and_does_not_count():
    held = a_report(NOTE, held_back=(replace(CRITICAL, held_back="the engine is warming up"), WARNING))
    result = verdict(replace(LOADED, symptoms=held), Config(), True, Severity.CRITICAL)
    assert result.status == Status.OK
    told = check._text(result, LOADED, 15.0)
    assert "held back, since the engine is warming up: CRITICAL kv-pressure" in told
    assert "ttft-high" not in told


def test_nothing_found_and_rules_that_failed_are_unknown():
    assert status(frame=frames.no_gpu()) == Status.UNKNOWN
    failed = verdict(replace(LOADED, symptoms=None), Config(), True)
    assert failed.status == Status.UNKNOWN
    assert "the rules failed" in failed.reasons[0]


def test_a_node_of_which_no_rule_can_judge_anything_is_not_called_fine():
    blind = replace(LOADED, symptoms=a_report(judged=0, cant_tell=(CantTell("x", Subject("node", "node"), "all"),)))
    result = verdict(blind, Config(), True)
    assert result.status == Status.UNKNOWN
    assert result.reasons == ("no rule had what it takes to judge anything",)


# -- the command ----------------------------------------------------------------------


@pytest.fixture
def on(monkeypatch):
    """Puts the program on a node of fake sources, with rules that raise these symptoms at once."""

    def put(*raised, node: FakeNode | None = None, cant_tell: CantTell | None = None) -> FakeNode:
        node = node or FakeNode((a_target(),))

        def run(view, limits):
            for symptom in raised:
                yield Check(symptom.id, symptom.subject, State.RAISED, make=lambda s=symptom: s)
            yield Check("fine", view.engines[0].subject if view.engines else Subject("node", "node"), State.CLEAR)
            if cant_tell:
                yield Check(cant_tell.id, cant_tell.subject, State.UNKNOWN, cant_tell.needs)

        monkeypatch.setattr(node_module, "real_sources", lambda config: node.sources)
        monkeypatch.setattr(check, "driver_here", lambda: True)
        monkeypatch.setattr(catalogue, "RULES", (Rule("any", "any", run),))
        monkeypatch.setattr(diagnosis, "THRESHOLDS", ())
        monkeypatch.setattr(diagnosis, "HOLDS", tuple(diagnosis_hold(s.id) for s in raised))
        return node

    return put


def diagnosis_hold(rule: str):
    from gputop_llm.symptoms.limits import Hold

    return Hold(rule, 0.3, 0.3)


def checked(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main(["check", "--period", "0.25", "--for", "1", *arguments])
    output = capsys.readouterr()
    assert "Traceback" not in output.out + output.err
    return code, output.out, output.err


def test_one_line_per_symptom_the_worst_group_first(on, capsys):
    on(CRITICAL, replace(WARNING, root=None), NOTE)
    code, out, err = checked(capsys)
    lines = out.splitlines()
    assert (code, err) == (2, "")
    assert len(lines) == 3
    assert lines[0].startswith("CRITICAL kv-pressure vllm org/model-a: KV cache 99 % full, 7 waiting (for ")
    assert lines[1].startswith("WARNING ttft-high vllm org/model-a: TTFT p95 4.2 s (for ")
    assert "follows from kv-pressure@engine:600@1795967802" in lines[1]
    assert lines[2].startswith("NOTE bandwidth-bound")


def test_severity_cuts_what_is_printed_and_counted(on, capsys):
    on(replace(WARNING, root=None), NOTE)
    assert checked(capsys, "--severity", "critical")[:2] == (0, "OK no symptom in 1 s, 3 conditions judged\n")
    code, out, _ = checked(capsys, "--severity", "warning")
    assert (code, len(out.splitlines())) == (1, 1)


def test_nothing_wrong_is_one_line_and_what_can_not_be_told_another(on, capsys):
    on(cant_tell=CantTell("comm-bound", Subject("gpu:0", "GPU 0"), "GPM counters (Hopper or newer)"))
    code, out, err = checked(capsys)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "OK no symptom in 1 s, 1 conditions judged",
        "can't tell comm-bound of GPU 0: needs GPM counters (Hopper or newer)",
    ]


def test_what_does_not_hold_for_long_enough_is_said_and_does_not_count(on, capsys, monkeypatch):
    on(CRITICAL)
    monkeypatch.setattr(diagnosis, "HOLDS", ())
    code, out, _ = checked(capsys)
    assert code == 0
    assert "not yet for long enough: CRITICAL kv-pressure" in out


def test_json_has_status_code_and_the_same_symptoms_as_a_frame(on, capsys):
    on(CRITICAL, replace(WARNING, root=None))
    code, out, _ = checked(capsys, "--json")
    told = json.loads(out)
    assert (code, told["exit_code"], told["check"]) == (2, 2, "critical")
    assert told["summary"] == "1 critical, 1 warning"
    assert told["watched_s"] == 1
    assert [s["id"] for s in told["symptoms"]["active"]] == ["kv-pressure", "ttft-high"]
    assert told["symptoms"]["active"][0]["severity"] == "critical"
    assert told["reasons"] == []


def test_a_node_with_nothing_on_it_is_unknown(on, capsys):
    node = FakeNode()
    node.gpus.answer = SourceError("no driver")
    on(node=node)
    code, out, _ = checked(capsys)
    assert code == 3
    assert out.splitlines()[0] == "UNKNOWN GPUs: no driver"
    code, out, _ = checked(capsys, "--json")
    assert (code, json.loads(out)["check"], json.loads(out)["reasons"][0]) == (3, "unknown", "GPUs: no driver")


def test_a_symptom_beside_something_unreadable_keeps_its_code_and_both_are_told(on, capsys):
    node = FakeNode((a_target(),))
    node.host.answer = SourceError("no /proc")
    on(CRITICAL, node=node)
    code, out, _ = checked(capsys)
    assert code == 2
    assert "could not be read: host: no /proc" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "--bogus"],
        ["check", "--for", "0"],
        ["check", "--for", "soon"],
        ["check", "--severity", "fatal"],
        ["check", "--webhook", "http://h/SECRET"],
        ["--bogus", "check"],
    ],
)
def test_wrong_usage_is_unknown_and_never_looks_like_a_symptom(capsys, arguments):
    assert main(arguments) == 3
    output = capsys.readouterr()
    assert output.err.count("\n") == 1
    assert "SECRET" not in output.err


@pytest.mark.parametrize("flags", [["--period", "0.01"], ["--exec", "true"], ["--config", "/nowhere"]])
def test_settings_that_can_not_be_used_are_unknown_with_a_line_for_nagios(capsys, flags):
    code = main(["check", *flags])
    assert code == 3
    assert capsys.readouterr().out.startswith("UNKNOWN ")


def test_a_bug_is_unknown(on, capsys, monkeypatch):
    on()
    monkeypatch.setattr(check, "verdict", lambda *_: 1 / 0)
    code, _, err = checked(capsys)
    assert code == 3
    assert "ZeroDivisionError" in err


def test_other_commands_keep_their_codes(capsys):
    assert main(["snapshot", "--bogus"]) == 2
    assert main(["gpus", "no such gpu"]) == 3


def test_exec_and_webhook_are_for_commands_that_last(capsys, tmp_path):
    hook = tmp_path / "hook"
    hook.write_text("http://h/")
    for flags in (["--exec", "true"], ["--webhook-file", str(hook)]):
        assert main(["snapshot", *flags]) == 2
        assert "use it with watch" in capsys.readouterr().err


def test_exec_from_the_environment_is_no_error_and_does_nothing(on, capsys, monkeypatch, tmp_path):
    on(CRITICAL)
    monkeypatch.setenv("GPUTOP_LLM_EXEC", f"touch {tmp_path}/ran")
    assert checked(capsys)[0] == 2
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_went_away_still_gets_the_code(on, monkeypatch):
    on(CRITICAL)

    def closed(_text):
        raise BrokenPipeError

    monkeypatch.setattr(check.output, "write_text", closed)
    assert main(["check", "--period", "0.25", "--for", "1"]) == 2


# -- on the simulated node -------------------------------------------------------------


def run_check(*arguments: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "gputop_llm", "check", *arguments]
    env = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_a_healthy_simulated_node_is_ok():
    done = run_check("--demo", "healthy", "--for", "3", "--period", "0.5", "--severity", "warning")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("OK no symptom in 3 s")


def test_a_simulated_engine_over_its_slo_is_not(tmp_path):
    config = tmp_path / "config.toml"
    config.write_text("slo_tpot_s = 0.0001\n[thresholds]\ntpot-high.for_s = 1\n")
    done = run_check("--demo", "healthy", "--for", "4", "--period", "0.5", "--config", str(config), "--json")
    told = json.loads(done.stdout)
    assert told["simulated"] == "simulated: healthy, seed 7"
    (found,) = [s for s in told["symptoms"]["active"] if s["id"] == "tpot-high"]
    assert done.returncode == {"warning": 1, "critical": 2}[found["severity"]]
    assert f"tpot-high.p95_s = 0.0001 (SLO {config})" in told["symptoms"]["overridden"]


# -- flags that all live commands have ----------------------------------------------------


def test_a_webhook_on_the_command_line_is_refused_with_the_reason_and_what_to_do(capsys):
    for arguments in (["--webhook", "http://h/SECRET"], ["watch", "--json", "--webhook=http://h/SECRET"]):
        assert main(arguments) == 2
        said = capsys.readouterr().err
        assert "every user of this node can read a command line" in said
        assert "GPUTOP_LLM_WEBHOOK" in said
        assert "--webhook-file" in said
        assert "SECRET" not in said


@pytest.mark.parametrize("command", ["", "snapshot", "watch", "check", "demo"])
def test_slos_are_in_the_help_and_notifications_where_something_is_watched_for_long(capsys, command):
    assert main([*command.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--slo-ttft" in shown
    assert "--slo-tpot" in shown
    for flag in ("--exec", "--webhook-file"):
        assert (flag in shown) == (command not in ("snapshot", "check"))
