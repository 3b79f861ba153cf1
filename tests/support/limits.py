"""MBU and MFU of the healthy engine of `symptom_frames`, and what stands in them."""

from __future__ import annotations

from gputop_llm.config import Config
from gputop_llm.modelmath import Parallel, ServedModel
from gputop_llm.symptoms.mbu_mfu import estimate
from gputop_llm.symptoms.view import NodeView
from tests.support.models import shape
from tests.support.symptom_frames import busy

H200 = 4.8e12
H200_BF16 = 989.5e12


ONE = Parallel()


def served(name="llama-1b-of-the-recording", parallel=ONE, **more):
    return ServedModel(shape(name), parallel, path="/models/m/config.json", **more)


def limits(model, config=None, seconds=12, **frames):
    view = NodeView(busy(seconds, **frames)).engines[0]
    return estimate(view, model, config or Config())


def mbu(model=None, **frames):
    return limits(model or served(), **frames).mbu


def mfu(model=None, **frames):
    return limits(model or served(), **frames).mfu


def value(found, name):
    return next(i.value for i in found.inputs if i.name.startswith(name))


def text(found, name):
    return next(i.text for i in found.inputs if i.name.startswith(name))


def on(name, mem_bytes=None, **fields):
    return {"gpu": {"name": name, "mem_total_bytes": mem_bytes, **fields}}
