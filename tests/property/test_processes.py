"""Whatever a process table holds, discovery's readers give an answer that makes sense."""

from hypothesis import given
from hypothesis import strategies as st

from gputop_llm.sources.cgroup import CgroupSample, CpuCounters, cpu_between
from gputop_llm.sources.process_table import Process
from gputop_llm.sources.procfs import parse_stat, split_argv
from gputop_llm.sources.vllm_argv import read_launch
from gputop_llm.sources.vllm_processes import ROLE_ORDER, find_trees

TITLES = [
    "VLLM::EngineCore",
    "VLLM::EngineCore_DP1",
    "VLLM::Worker_TP0",
    "VLLM::Worker",
    "VLLM::APIServer_0",
    "VLLM::DPCoordinator",
    "mine::EngineCore",
    "mine::Worker",
    "vllm serve m",
    "python3 -m vllm.entrypoints.openai.api_server --model m",
    "python3 -c from_multiprocessing.spawn",
    "python3 job.py",
    "bash",
    "",
]
words = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=20)


@st.composite
def tables(draw):
    size = draw(st.integers(0, 14))
    table = {}
    for pid in range(1, size + 1):
        title = draw(st.sampled_from(TITLES))
        argv = (title,) if "::" in title else tuple(title.split())
        group = draw(st.integers(1, 4))
        table[pid] = Process(
            pid,
            draw(st.integers(0, size)),
            group,
            group,
            draw(st.sampled_from("SRZ")),
            title[:15],
            argv,
            start_ticks=pid,
        )
    return table


@given(tables())
def test_in_any_table_a_process_belongs_to_one_engine_at_most(table):
    trees = find_trees(table)
    members = [m.process.pid for tree in trees for m in tree.members]

    assert len({tree.root.pid for tree in trees}) == len(trees)
    for tree in trees:
        own = [m.process.pid for m in tree.members]
        assert len(own) == len(set(own))
        assert tree.root.pid in own
        assert {m.role for m in tree.members} <= set(ROLE_ORDER)
    assert set(members) <= set(table)


@given(tables())
def test_every_process_with_a_title_of_vllm_s_own_is_in_an_engine(table):
    titled = {p.pid for p in table.values() if p.argv and p.argv[0].startswith("VLLM::")}

    assert titled <= {m.process.pid for tree in find_trees(table) for m in tree.members}


@given(
    st.lists(
        st.one_of(words, st.sampled_from(["vllm", "serve", "--port", "8000", "-m", "--config", "--uds", "="])),
        max_size=12,
    )
)
def test_any_command_line_is_read_without_a_failure(argv):
    launch = read_launch(argv)

    assert launch is None or all(url.startswith("http://") for url in launch.urls)
    served = read_launch(["vllm", "serve", *argv])
    assert served is not None
    assert len(served.urls) <= 1 or served.servers_per_port


@given(st.lists(words.filter(lambda word: word.strip(" ")), max_size=8))
def test_a_command_line_comes_back_as_it_was_written(argv):
    raw = b"".join(word.encode() + b"\0" for word in argv)
    trimmed = [*argv[:-1], argv[-1].rstrip(" ")] if argv else []

    assert split_argv(raw) == tuple(trimmed)


@given(words, st.integers(0, 2**22), st.integers(0, 2**40), st.integers(0, 2**40))
def test_a_stat_line_is_read_whatever_the_name_is(name, ppid, ticks, start):
    line = f"1 ({name}) S {ppid} 1 1 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 0 1 0 {start} 0 5 " + "0 " * 28
    stat = parse_stat(line.encode())

    assert (stat.comm, stat.ppid, stat.cpu_ticks, stat.start_ticks) == (name, ppid, ticks, start)


counters = st.builds(
    CpuCounters,
    st.one_of(st.none(), st.integers(0, 10**9)),
    st.one_of(st.none(), st.integers(0, 10**9)),
    st.one_of(st.none(), st.floats(0, 1e9)),
    st.one_of(st.none(), st.floats(0, 1e9)),
)


@given(counters, counters, st.one_of(st.none(), st.floats(0.1, 512)), st.floats(0.1, 1e4))
def test_throttling_is_never_negative_and_never_above_all_periods(before, after, quota, seconds):
    cpu = cpu_between(
        CgroupSample("/g", 2, quota, before, None, None), CgroupSample("/g", 2, quota, after, None, None), seconds
    )

    assert cpu.used_cpus is None or cpu.used_cpus >= 0
    assert cpu.throttled_pct is None or 0 <= cpu.throttled_pct <= 100
    assert quota is not None or (cpu.throttled_pct, cpu.throttled_s_per_s) == (None, None)
