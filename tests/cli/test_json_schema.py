"""The form of the JSON: locked path by path, documented from the same source, and kept by real frames."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gputop_llm.model import (
    EngineLive,
    EngineReading,
    EngineSeries,
    EngineWindow,
    GpuNode,
    GpuPair,
    Histogram,
    Part,
    TargetList,
)
from gputop_llm.model.limits import EngineLimits, LimitEstimate, LimitInput
from gputop_llm.report import jsonform
from tests.support import frames
from tests.support.symptom_reports import a_full_report, a_symptom
from tools import schema_doc

ROWS = dict(schema_doc.rows())
FRAMES = {
    "one GPU": frames.one_gpu_loaded(),
    "TP=2": frames.tp2(),
    "eight GPUs": frames.eight_gpus(),
    "everything": frames.everything_on(),
    "no engine": frames.gpu_without_engine(),
    "no GPU": frames.no_gpu(),
    "nothing known": frames.nothing_known(),
    "unreachable": frames.unreachable(),
    "several": frames.several_candidates(),
    "markup": frames.markup_in_names(),
    "a log": frames.logged(),
    "symptoms": replace(frames.one_gpu_loaded(), symptoms=a_full_report(a_symptom())),
    "nothing answered yet": replace(frames.no_gpu(), gpus=Part(), host=Part(), targets=Part(), engines=()),
}
_BANDWIDTH = LimitInput("memory bandwidth", 4.8e12, "B/s", "table of GPUs", "H200")
_OF_PEAK = LimitEstimate("MBU", "bytes × steps/s ÷ bandwidth", 19.3, (_BANDWIDTH,), 0.00044, False, ("a note",))
_UNKNOWN = LimitEstimate("MFU", "FLOP/s ÷ peak", unknown="the model's size is unknown")
FRAMES["limits"] = replace(
    frames.one_gpu_loaded(),
    engines=(
        replace(frames.one_gpu_loaded().engines[0], limits=EngineLimits(_OF_PEAK, _UNKNOWN)),
        replace(frames.one_gpu_loaded().engines[0], limits=EngineLimits(_UNKNOWN, replace(_OF_PEAK, name="MFU"))),
    ),
)
KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
MAPPINGS = {path.rpartition(".<")[0] for path in ROWS if path.endswith(">")}


def parsed(frame) -> dict:
    """As any strict reader of JSON sees it."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(jsonform.frame_line(frame), parse_constant=refuse)


def flat(value, path: str = ""):
    """Yields (documented path, value) of everything inside."""
    if path:
        yield path, value
    if isinstance(value, dict):
        for name, inner in value.items():
            if path in MAPPINGS:
                (key,) = {p for p in ROWS if p.startswith(f"{path}.<") and p.endswith(">")}
                yield from flat(inner, key)
            else:
                yield from flat(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for inner in value:
            yield from flat(inner, f"{path}[]")


def test_no_path_of_this_schema_has_changed_without_notice():
    """On purpose? Run tools/schema_doc.py. A path that went or changed its meaning needs a new schema number."""
    assert schema_doc.locked() == schema_doc.LOCK.read_text(encoding="utf-8")


def test_the_documented_table_is_the_present_one():
    document = schema_doc.DOC.read_text(encoding="utf-8")
    assert document == schema_doc.with_table(document), "run tools/schema_doc.py"


def test_every_remark_of_the_table_is_about_a_path_in_it():
    shown = set(re.findall(r"^\| `(.+?)` ", schema_doc.table(), re.MULTILINE))
    assert set(schema_doc._REMARKS) <= shown
    assert {path for path in ROWS if not path.startswith(schema_doc._ALIKE_BELOW)} == shown


@pytest.mark.parametrize("name", FRAMES)
def test_every_value_of_a_frame_is_documented_with_its_type(name):
    for path, value in flat(parsed(FRAMES[name])):
        kind, _, optional = ROWS[path].partition(" or ")
        if value is None:
            assert optional == "null", f"{path} is null"
        else:
            fits = {KINDS[type(value)], "number"} if type(value) is int else {KINDS[type(value)]}
            assert kind in fits, f"{path} is {value!r}"


def test_every_documented_path_is_reached_by_some_frame():
    gpu = frames.with_mig(frames.troubled(frames.h200()))
    pairs = (GpuPair(0, 1, "SYS", nvlink=False, peer_access=None, missing={"peer_access": "unknown"}),)
    window = replace(frames.engine().window, http_per_s={"5xx": 0.4})
    mig = replace(
        frames.frame(replace(frames.node([gpu]), pairs=pairs), (frames.target(),)),
        engines=(replace(frames.engine(), window=window),),
        notes=("attached",),
        targets=frames.part(TargetList((frames.target(),), notes=("a note for the doctor",))),
    )
    engine = frames.engine()
    unread = replace(engine.scrape.value, unread={"http://127.0.0.1:8001": "cannot read it"})
    silent = frames.frame(frames.node([gpu]), (frames.target(),), (replace(engine, scrape=frames.part(unread)),))
    reached = {path for frame in (*FRAMES.values(), mig, silent) for path, _ in flat(parsed(frame))}
    # As `total`, whose paths are all reached.
    alike = ("engines[].models[].", "engines[].ranks[].", "host.processes[].missing.")
    assert [path for path in ROWS if path not in reached and not path.startswith(alike)] == []


def test_a_line_is_one_line_of_ascii():
    named = frames.frame(None, (frames.target(model="modèle\n\u202e\udcff 模型"),))
    line = jsonform.frame_line(named)
    assert line.isascii()
    assert "\n" not in line
    # Half a surrogate pair, from bytes that are no UTF-8, would be refused by other readers.
    assert json.loads(line)["targets"][0]["model"] == "modèle\n\u202e\\udcff 模型"


def test_indented_and_one_line_say_the_same():
    frame = frames.one_gpu_loaded()
    assert json.loads(jsonform.frame_text(frame)) == json.loads(jsonform.frame_line(frame))


def test_raw_histograms_and_monotonic_times_are_left_out():
    series = EngineSeries("m", "0", histograms={"ttft": Histogram((1.0, math.inf), (1.0, 2.0), 3.0)})
    engine = frames.engine(value=EngineReading(engine="vllm", series=(series,)))
    line = jsonform.frame_line(frames.frame(None, (frames.target(),), (engine,)))
    assert '"series"' not in line
    assert "bounds" not in line
    assert "mono" not in line


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_null(value):
    live = EngineLive(model=None, rank=None, running=value, finished_per_s={"stop": value})
    engine = frames.engine(window=EngineWindow(live))
    total = parsed(frames.frame(None, (frames.target(),), (engine,)))["engines"][0]["total"]
    assert total["running"] is None
    assert total["finished_per_s"] == {"stop": None}


def test_unknown_is_null_with_its_reason_beside_it_and_never_zero():
    gpu = parsed(FRAMES["nothing known"])["gpus"][0]
    assert gpu["util_pct"] is None
    assert gpu["missing"]["util_pct"] == "Not Supported"
    assert gpu["mem_used_pct"] is None
    assert gpu["processes"] is None


def test_gpus_that_can_not_be_read_are_unknown_and_not_none():
    broken = parsed(frames.frame(GpuNode(problem="the driver and its library differ")))
    assert broken["gpus"] is None
    assert broken["node"]["problem"] == "the driver and its library differ"
    nothing = parsed(FRAMES["nothing answered yet"])
    assert (nothing["gpus"], nothing["host"], nothing["targets"], nothing["engines"]) == (None, None, None, [])


def test_times_are_seconds_since_1970_and_the_same_in_words():
    whole = parsed(replace(frames.one_gpu_loaded(), at_s=1_795_968_526.1234))
    assert (whole["at_s"], whole["at"]) == (1_795_968_526.1234, "2026-11-29T16:08:46.123Z")
    assert whole["sources"]["host"]["at"] == "2026-11-29T16:08:45.800Z"


def test_a_demo_says_so_at_the_top():
    assert parsed(replace(FRAMES["one GPU"], simulated="simulated: healthy, seed 7"))["simulated"].startswith("simul")
    assert parsed(FRAMES["one GPU"])["simulated"] is None


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_any_float_becomes_json(value):
    text = json.dumps(jsonform.plain(value), allow_nan=False)
    if math.isfinite(value):
        assert json.loads(text) == pytest.approx(value, abs=1e-6)
