"""What a scenario's cause does to the simulated node, when it begins and ends, and that it comes again."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from gputop_llm.demo.cause import LOADING_S, Cause
from gputop_llm.demo.node import HANGS_S, SimulatedNode
from gputop_llm.demo.scenarios import SYMPTOMS, scenario
from gputop_llm.demo.wire import Answer, encode
from gputop_llm.sources.engines import vllm
from gputop_llm.sources.promtext import TextParser

STARTED_S = 1_800_000_000.0
CAUSE = Cause(20.0, 65.0, 150.0)


def made(name, at_s, seed=7):
    node = SimulatedNode(scenario(name), seed, 1, 1, STARTED_S)
    node.advance(at_s)
    return node


def parsed(text):
    return vllm.read(TextParser(vllm.ENGINE.needed).parse(text), "0.32.0")


@pytest.mark.parametrize(
    ("at_s", "holds", "changes"),
    [
        *((-60, False, 20), (0, False, 20), (20, True, 65), (64.9, True, 65), (65, False, 170)),
        *((149, False, 170), (150, False, 170), (170, True, 215), (220, False, 320)),
    ],
)
def test_a_cause_holds_between_its_times_and_comes_again(at_s, holds, changes):
    assert CAUSE.holds(at_s) is holds
    assert CAUSE.changes_after(at_s) == changes


def test_an_edit_is_told_for_how_long_its_cause_has_held_in_all_and_when_it_last_began():
    told = []

    def edit(reading, moment):
        told.append((moment.holds, moment.held_s, moment.began_wall_s))
        return reading

    cause = Cause(20.0, 65.0, 150.0, counters=(edit,))
    for at_s in (-5.0, 10.0, 30.0, 100.0, 160.0, 200.0):
        cause.edited(None, at_s, 1000.0)

    assert told == [(True, 10, 1020), (False, 45, 1020), (False, 45, 1020), (True, 75, 1170)]


@pytest.mark.parametrize("script", SYMPTOMS, ids=lambda script: script.name)
def test_what_a_cause_makes_of_a_reading_comes_over_the_wire_and_names_no_real_process(script):
    node = made(script.name, script.when[0] + 2)
    sent = node.reading([8000])
    answer = Answer(encode(sent))

    assert (answer.gpus(), answer.host(), answer.targets()) == (sent.gpus, sent.host, sent.targets)
    assert all(p.pid > 1 << 22 for t in sent.targets.targets for p in t.processes)
    assert all(p.pid > 1 << 22 for gpu in sent.gpus.gpus for p in gpu.processes)
    assert all("simulated" in note for t in sent.targets.targets for note in t.notes)


@pytest.mark.parametrize("script", [s for s in SYMPTOMS if s.cause and s.cause.readings], ids=lambda s: s.name)
def test_readings_change_with_the_cause_and_are_as_before_when_it_ends(script):
    plain = SimulatedNode(_without_edits(script), 7, 1, 1, STARTED_S)
    node = SimulatedNode(script, 7, 1, 1, STARTED_S)
    differ = []
    for at_s in (script.cause.from_s - 1, script.cause.from_s + 1, script.cause.to_s + 1):
        plain.advance(at_s)
        node.advance(at_s)
        differ.append(plain.reading([1]) != node.reading([1]))

    assert differ == [False, True, bool(script.cause.counters)]


def _without_edits(script):
    return replace(script, cause=replace(script.cause, readings=(), counters=()))


def test_what_was_counted_stays_counted():
    replays = [made("link-degraded-replays", at_s).reading([1]).gpus.gpus[0].pcie_replays for at_s in (10, 30, 65, 90)]

    assert replays == [0, 40, 180, 180]


def test_an_engine_that_stands_still_counts_nothing_and_goes_on_afterwards():
    node = made("stalled", 21.0)
    counted = []
    for at_s in (22.0, 48.0, 55.0):
        node.advance(at_s)
        counted.append(parsed(node.metrics(0)).series[0])

    assert counted[0].counters == counted[1].counters
    assert counted[0].running == counted[1].running > 0
    assert counted[2].counters["generation_tokens"] > counted[1].counters["generation_tokens"]


def test_a_spinning_collective_reads_busy_and_a_deadlock_idle():
    spinning, locked = (made(name, 35.0).reading([1]) for name in ("stalled", "stalled-deadlock"))

    assert [gpu.util_pct for gpu in spinning.gpus.gpus] == [100, 100]
    assert all(gpu.gpm.sm_active_pct < 20 and gpu.gpm.dram_bw_pct < 1 for gpu in spinning.gpus.gpus)
    assert [gpu.util_pct for gpu in locked.gpus.gpus] == [0, 0]
    assert all(load.cpu_pct == 0 for load in locked.host.processes if load.role != "api-server")


def test_a_restarted_engine_has_other_processes_refuses_while_it_loads_and_counts_from_nothing():
    before, loading, after = (made("warming-up", at_s) for at_s in (19.0, 20.0 + LOADING_S / 2, 20.0 + LOADING_S + 5))
    targets = [node.reading([1]).targets.targets[0] for node in (before, loading, after)]

    assert [node.page(0).status for node in (before, loading, after)] == [200, 0, 200]
    assert targets[0].key != targets[1].key == targets[2].key
    assert not set(targets[0].pids) & set(targets[2].pids)
    assert targets[2].started_s == STARTED_S + 20
    old, new = parsed(before.page(0).text), parsed(after.page(0).text)
    assert new.started_s == STARTED_S + 20
    assert 0 < new.series[0].counters["generation_tokens"] < old.series[0].counters["generation_tokens"] / 4


@pytest.mark.parametrize(
    ("name", "status", "delay_s"), [("metrics-stale", 500, 0), ("metrics-stale-hangs", 200, HANGS_S)]
)
def test_a_page_fails_or_hangs_while_its_cause_holds(name, status, delay_s):
    answers = [made(name, at_s).page(0) for at_s in (19.0, 21.0, 66.0)]

    assert [(a.status, a.delay_s) for a in answers] == [(200, 0), (status, delay_s), (200, 0)]


def test_a_page_that_stands_shows_an_engine_that_has_served_nothing_until_it_shows_all():
    node = made("metrics-stale-stands", 0.0)
    texts = []
    for at_s in (1.0, 44.0, 66.0):
        node.advance(at_s)
        texts.append(node.page(0).text)
    standing, real = parsed(texts[0]), parsed(texts[2])

    assert texts[0] == texts[1]
    assert standing.started_s == real.started_s
    assert (standing.series[0].running, standing.series[0].counters["generation_tokens"]) == (0, 0)
    assert real.series[0].running > 0


def test_a_page_fails_over_http_too():
    command = [sys.executable, "-m", "gputop_llm.demo.server", "--scenario", "metrics-stale", "--rate", "40"]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        port = json.loads(server.stdout.readline())["engines"][0]
        seen = []
        until_s = time.monotonic() + 20
        while seen[-2:] != [500, 200]:
            assert time.monotonic() < until_s, seen
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request("GET", "/metrics")
            status = connection.getresponse().status
            connection.close()
            if seen[-1:] != [status]:
                seen.append(status)
    finally:
        server.stdin.close()
        server.wait(10)
        server.stdout.close()

    assert seen[:3] == [200, 500, 200]


def test_the_command_line_tells_what_the_scenario_sets():
    (capped,) = made("scheduler-capped", 0.0).reading([1]).targets.targets
    (usual,) = made("healthy", 0.0).reading([1]).targets.targets

    assert capped.argv[capped.argv.index("--max-num-seqs") + 1] == "32"
    assert "--max-num-seqs" not in usual.argv


def test_slower_kernels_do_the_same_work_in_more_time():
    usual, slow = made("healthy", 60.0), made("gpu-busy-not-working", 60.0)
    a, b = (node.reading([1]).gpus.gpus[0] for node in (usual, slow))

    assert b.util_pct >= a.util_pct - 1
    assert b.gpm.sm_active_pct < 0.5 * a.gpm.sm_active_pct
