"""The `/metrics` page of a simulated engine, byte for byte in vLLM 0.32's format.

All text but the numbers is made once: rendering a page is a walk over a few hundred numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from gputop_llm.demo.families import (
    CACHE_CONFIG,
    HTTP_COARSE,
    HTTP_FINE,
    HTTP_TOTAL,
    VLLM_FAMILIES,
    Family,
    speculative,
)
from gputop_llm.demo.observations import Observations, Tally, together
from gputop_llm.demo.requests import Limits

_HANDLER = {"handler": "/v1/completions", "method": "POST"}


def number(value: float) -> str:
    """A value as prometheus_client writes it: a float, with an exponent from a million on ("2.5e+06")."""
    text = repr(float(value))
    if value < 1e6 or "e" in text:
        return text
    whole, _, fraction = text.partition(".")
    digits = (whole + fraction).rstrip("0")
    return f"{digits[0]}{'.' if len(digits) > 1 else ''}{digits[1:]}e+{len(whole) - 1:02d}"


def labels(pairs: Mapping[str, str]) -> str:
    """Labels as exposed: sorted, in braces; nothing for none."""
    return "{" + ",".join(f'{name}="{pairs[name]}"' for name in sorted(pairs)) + "}" if pairs else ""


def cache_config(limits: Limits, kv_bytes_per_token: int) -> dict[str, str]:
    """Labels of `cache_config_info`; the pool in bytes over all GPUs of the engine."""
    tokens = limits.num_gpu_blocks * limits.block_size
    return CACHE_CONFIG | {
        "block_size": str(limits.block_size),
        "effective_attention_block_size": str(limits.block_size),
        "num_gpu_blocks": str(limits.num_gpu_blocks),
        "kv_cache_size_tokens": str(tokens),
        "kv_cache_max_concurrency": str(tokens / limits.max_model_len),
        "kv_cache_memory_bytes": str(tokens * kv_bytes_per_token),
    }


class MetricsPage:
    """Renders the page of one server with one engine, or with several data-parallel ranks.

    Args:
        model: the served name.
        config: labels of `cache_config_info`.
        created_s: wall time at which the engine's counters began.
        ranks: how many engines there are.
        spec_tokens: tokens drafted per step; 0 without speculative decoding.
    """

    def __init__(
        self, model: str, config: Mapping[str, str], created_s: float, ranks: int = 1, spec_tokens: int = 0
    ) -> None:
        self._who = [{"model_name": model, "engine": str(rank)} for rank in range(ranks)]
        self._created = number(created_s)
        self._families = [self._family(family) for family in (*speculative(spec_tokens), *VLLM_FAMILIES)]
        self._process_head = self._process(created_s)
        self._config_info = _head("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig") + (
            "".join(f"vllm:cache_config_info{labels({**config, 'engine': str(r)})} 1.0\n" for r in range(ranks))
        )
        self._http_fine = self._histogram("http_request_duration_highr_seconds", HTTP_FINE, [{}])
        self._http_coarse = self._histogram("http_request_duration_seconds", HTTP_COARSE, [_HANDLER])

    def render(self, seen: Sequence[Observations], cpu_s: float) -> str:
        """The page of what each rank has seen; `cpu_s` is the CPU time of the API server process so far."""
        values = [
            {
                **one.values,
                "engine_sleep_state:awake": 1.0,
                "num_requests_waiting_by_reason:capacity": one.values["num_requests_waiting"],
                "prompt_tokens_cached_by_source:device": one.values["prefix_cache_hits"],
            }
            for one in seen
        ]
        tallies = [one.tallies for one in seen]
        over_ranks = [together(tallies)]
        parts = [self._process_head, f"process_cpu_seconds_total {number(cpu_s)}\n"]
        for fill in self._families:
            parts.extend(fill(values, tallies))
        parts.append(self._config_info)
        parts.extend(self._http_total(sum(one.finished for one in seen), sum(one.refused for one in seen)))
        parts.extend(self._http_fine(values, over_ranks))
        parts.extend(self._http_coarse(values, over_ranks))
        return "".join(parts)

    def _process(self, created_s: float) -> str:
        gauge, start = "process_start_time_seconds", "Start time of the process since unix epoch in seconds."
        python = {"implementation": "CPython", "major": "3", "minor": "12", "patchlevel": "3", "version": "3.12.3"}
        cpu = "Total user and system CPU time spent in seconds."
        return (
            _head("python_info", "gauge", "Python platform information")
            + f"python_info{labels(python)} 1.0\n"
            + _head("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.")
            + f"process_resident_memory_bytes {number(float(1400 << 20))}\n"
            + _head(gauge, "gauge", start)
            + f"{gauge} {number(created_s)}\n"
            + _head("process_cpu_seconds_total", "counter", cpu)
        )

    def _family(self, family: Family) -> _Fill:
        name = f"vllm:{family.name}"
        if family.kind == "histogram":
            return self._histogram(name, family.help, self._who)
        whose = self._who if family.engine else [{"model_name": self._who[0]["model_name"]}]
        suffix = "_total" if family.kind == "counter" else ""
        lines = [
            [(f"{name}{suffix}{labels({**who, **extra})} ", key) for extra, key in family.samples] for who in whose
        ]
        head = _head(name + suffix, family.kind, family.help)
        tail = self._created_lines(
            name, family.help, [{**who, **extra} for who in whose for extra, _ in family.samples]
        )
        if family.kind == "gauge":
            tail = ""

        def fill(values: Sequence[Mapping[str, float]], _tallies: _Tallies) -> Iterator[str]:
            yield head
            # A family without engine label has one set of lines, whatever the ranks.
            for of_rank, texts in zip(values, lines, strict=False):
                for text, key in texts:
                    yield text
                    yield number(of_rank.get(key, 0.0))
                    yield "\n"
            yield tail

        return fill

    def _histogram(self, name: str, text: str, whose: Sequence[Mapping[str, str]]) -> _Fill:
        key = name.removeprefix("vllm:")
        head = _head(name, "histogram", text)
        tail = self._created_lines(name, text, whose)
        ends = [(f"{name}_count{labels(who)} ", f"{name}_sum{labels(who)} ") for who in whose]
        buckets: list[list[str]] = []

        def fill(_values: Sequence[Mapping[str, float]], tallies: _Tallies) -> Iterator[str]:
            if not buckets:
                buckets.extend(_bucket_texts(name, who, of[key]) for who, of in zip(whose, tallies, strict=True))
            yield head
            for of_rank, texts, (count, total) in zip(tallies, buckets, ends, strict=True):
                tally, below = of_rank[key], 0
                for bucket, counted in zip(texts, tally.counts, strict=True):
                    below += counted
                    yield f"{bucket}{number(below)}\n"
                yield f"{count}{number(tally.count)}\n"
                yield f"{total}{number(tally.total)}\n"
            yield tail

        return fill

    def _http_total(self, finished: int, refused: int) -> Iterator[str]:
        # A status has no series before its first answer.
        counts = {"2xx": finished, **({"5xx": refused} if refused else {})}
        series = [{**_HANDLER, "status": status} for status in counts]
        yield _head("http_requests_total", "counter", HTTP_TOTAL)
        for who, count in zip(series, counts.values(), strict=True):
            yield f"http_requests_total{labels(who)} {number(count)}\n"
        yield self._created_lines("http_requests", HTTP_TOTAL, series)

    def _created_lines(self, name: str, text: str, series: Sequence[Mapping[str, str]]) -> str:
        created = f"{name}_created"
        lines = "".join(f"{created}{labels(who)} {self._created}\n" for who in series)
        return _head(created, "gauge", text) + lines


_Tallies = Sequence[Mapping[str, Tally]]
_Fill = Callable[[Sequence[Mapping[str, float]], _Tallies], Iterator[str]]


def _head(name: str, kind: str, text: str) -> str:
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def _bucket_texts(name: str, who: Mapping[str, str], tally: Tally) -> list[str]:
    bounds = [*(number(bound) for bound in tally.bounds), "+Inf"]
    return [f"{name}_bucket{labels({**who, 'le': bound})} " for bound in bounds]
