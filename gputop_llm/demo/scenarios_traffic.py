"""Scenarios of what is sent, and of the scheduler: latency, queue, KV cache, prefixes, drafts, errors, ranks."""

from __future__ import annotations

from dataclasses import replace

from gputop_llm.demo.causes import EVERY_S, FROM_S, TO_S, in_between, near_miss, raising
from gputop_llm.demo.pace import Pace
from gputop_llm.demo.requests import REFUSED, Limits
from gputop_llm.demo.traffic import CHAT, Lengths, Stream, always

# Requests at even intervals: how many run at once can be told beforehand.
_EVEN = replace(CHAT, name="even", prompt=always(1800), output=Lengths(900, 0.2, 500, 1500), even=True)
_UNSHARED = replace(CHAT, name="unshared", prefix_share=0.0)


def _documents(tokens: int) -> Stream:
    """Long prompts, a third of which is the same for all of them: as many cached tokens as chat has."""
    return Stream(
        name="documents",
        rates=((0.0, 0.0),),
        prompt=always(tokens),
        output=always(40),
        even=True,
        prefixes=1,
        prefix_blocks=tokens // 48,
        prefix_share=1.0,
    )


SCENARIOS = (
    raising(
        "ttft-high",
        "documents of 33,000 tokens come every 4 s: their first token takes more than 1 s",
        streams=(CHAT.at((0.0, 2.2)), in_between(_documents(33_000), 0.25)),
    ),
    near_miss(
        "ttft-high",
        "documents of 23,500 tokens come every 4 s: their first token takes 0.9 s",
        streams=(CHAT.at((0.0, 2.2)), in_between(_documents(23_500), 0.25, 0.05)),
    ),
    raising(
        "tpot-high",
        "prompts of 6,000 tokens come so often that one token in twelve waits for a prefill",
        streams=(CHAT.at((0.0, 2.0)), in_between(_documents(6_000), 4.2)),
    ),
    near_miss(
        "tpot-high",
        "prompts of 3,800 tokens come as often, but their prefill takes less than 0.1 s",
        streams=(CHAT.at((0.0, 2.0)), in_between(_documents(3_800), 5.5)),
    ),
    raising(
        "queue-growing",
        "for 30 s more requests come than 84 seats can serve, with the KV cache nearly full: the queue grows",
        streams=(_EVEN.at((0.0, 4.0), (20.0, 9.0), (50.0, 0.3), (80.0, 4.0), every_s=EVERY_S),),
        limits=Limits(max_num_seqs=84, num_gpu_blocks=10_800),
        when=(20.0, 50.0),
        shows_s=16.0,
        lingers_s=40.0,
    ),
    near_miss(
        "queue-growing",
        "for 30 s nearly as many requests come as 84 seats can serve: none waits",
        streams=(_EVEN.at((0.0, 4.0), (20.0, 5.3), (50.0, 4.0), every_s=EVERY_S),),
        limits=Limits(max_num_seqs=84, num_gpu_blocks=10_800),
        when=(20.0, 50.0),
    ),
    raising(
        "scheduler-capped",
        "--max-num-seqs 32 holds requests back that the KV cache has room for",
        streams=(_EVEN.at((0.0, 2.4), (FROM_S, 4.6), (TO_S, 1.0), (90.0, 2.4), every_s=EVERY_S),),
        limits=Limits(max_num_seqs=32),
        shows_s=20.0,
        lingers_s=40.0,
    ),
    near_miss(
        "scheduler-capped",
        "--max-num-seqs 32 leaves room for what comes: 28 run, none waits",
        streams=(_EVEN.at((0.0, 2.4), (FROM_S, 3.2), (TO_S, 2.4), every_s=EVERY_S),),
        limits=Limits(max_num_seqs=32),
    ),
    raising(
        "kv-pressure",
        "a KV pool of half the size is full: requests wait, others are preempted and computed again",
        streams=(CHAT.at((0.0, 1.8), (FROM_S, 7.0), (TO_S, 0.3), (95.0, 1.8), every_s=EVERY_S),),
        limits=Limits(num_gpu_blocks=8_000),
        shows_s=16.0,
        lingers_s=45.0,
        also=("compute-bound",),
    ),
    near_miss(
        "kv-pressure",
        "the KV pool is 85 % full, and nothing is preempted",
        streams=(in_between(_EVEN, 4.4, 2.0),),
        limits=Limits(num_gpu_blocks=6_500),
    ),
    raising(
        "prefix-cache-cold",
        "prompts no longer share a beginning: the prefix cache is of no use",
        streams=(in_between(CHAT, 0.0, 4.4), in_between(_UNSHARED, 4.4)),
        lingers_s=25.0,
    ),
    near_miss(
        "prefix-cache-cold",
        "two prompts in five no longer share a beginning",
        streams=(in_between(CHAT, 2.7, 4.4), in_between(_UNSHARED, 1.7)),
    ),
    raising(
        "spec-decode-weak",
        "of three drafted tokens hardly one is accepted",
        limits=Limits(spec_tokens=3),
        pace=Pace(acceptance=0.3),
    ),
    near_miss(
        "spec-decode-weak",
        "of three drafted tokens 1.7 are accepted",
        limits=Limits(spec_tokens=3),
        pace=Pace(acceptance=0.74),
    ),
    raising(
        "errors-rising",
        "one request in eight is given up by its client",
        streams=(CHAT, in_between(replace(CHAT, name="given-up", ends="abort"), 0.6)),
        shows_s=20.0,
        lingers_s=30.0,
    ),
    near_miss(
        "errors-rising",
        "one single request is given up by its client",
        streams=(
            CHAT,
            replace(_EVEN, name="given-up", ends="abort").at((0.0, 0.0), (20.0, 1.0), (21.5, 0.0), every_s=EVERY_S),
        ),
        when=(20.0, 40.0),
    ),
    raising(
        "errors-rising",
        "one request in eight is answered with status 503, before the engine has it",
        variant="http",
        streams=(CHAT, in_between(replace(CHAT, name="refused", ends=REFUSED), 0.6)),
        shows_s=20.0,
        lingers_s=25.0,
    ),
    near_miss(
        "errors-rising",
        "one single request is answered with status 503",
        variant="http",
        streams=(
            CHAT,
            replace(_EVEN, name="refused", ends=REFUSED).at((0.0, 0.0), (20.0, 1.0), (21.5, 0.0), every_s=EVERY_S),
        ),
        when=(20.0, 40.0),
    ),
    raising(
        "rank-imbalance",
        "the router sends four of five requests to one of two data-parallel ranks",
        gpus=2,
        ranks=2,
        streams=(
            replace(in_between(CHAT, 5.2, 3.3), name="to-0", rank=0),
            replace(in_between(CHAT, 1.0, 3.3), name="to-1", rank=1),
        ),
        shows_s=16.0,
        lingers_s=35.0,
    ),
    near_miss(
        "rank-imbalance",
        "the router sends three of five requests to one of two data-parallel ranks",
        gpus=2,
        ranks=2,
        streams=(
            replace(in_between(_EVEN, 3.9, 3.3), name="to-0", rank=0),
            replace(in_between(_EVEN, 2.7, 3.3), name="to-1", rank=1),
        ),
    ),
    raising(
        "underloaded",
        "hardly anything is sent: the clients are the limit (nothing is wrong)",
        streams=(in_between(CHAT, 0.3, 4.4),),
        lingers_s=25.0,
        shows_s=25.0,
    ),
    near_miss(
        "underloaded",
        "a third of the usual load is sent: some ten requests run at once",
        streams=(replace(in_between(_EVEN, 1.6, 4.4), name="even"),),
    ),
)
