"""Which target is in focus, and how it is kept through restarts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gputop_llm.config import Config
from gputop_llm.follow import Follower, describe
from gputop_llm.model import NO_PROCESS_DATA, Target, TargetProcess
from tests.support.fake_sources import a_target

ONE, OTHER = a_target(4711, 8000), a_target(5000, 8001, model="org/model-b")
RESTARTED = a_target(9000, 8000)
TRAINING = Target(
    key="6000@1",
    engine="cuda",
    root_pid=6000,
    argv=("python", "train.py"),
    processes=(TargetProcess(pid=6000, ppid=1, role="other", title="python", gpus=(1,)),),
)
URL = "http://127.0.0.1:8000"


def focus_after(config: Config, *looks: tuple[Target, ...]) -> str | None:
    follower = Follower(config)
    for look in looks:
        follower.update(follower.with_url_target(look))
    return follower.focus


# -- the first choice ----------------------------------------------------------


def test_a_single_engine_is_attached_to_and_said_so():
    follower = Follower(Config())
    assert follower.update((ONE,)) == ["attached to vllm org/model-a (pid 4711)"]
    assert follower.focus == ONE.key
    assert follower.update((ONE,)) == []


def test_of_several_engines_none_is_chosen():
    assert focus_after(Config(), (ONE, OTHER)) is None


def test_an_engine_is_chosen_over_other_cuda_processes():
    assert focus_after(Config(), (TRAINING, ONE)) == ONE.key


def test_a_cuda_process_is_chosen_when_it_is_alone():
    assert focus_after(Config(), (TRAINING,)) == TRAINING.key


def test_what_can_not_be_watched_is_no_candidate():
    assert focus_after(Config(), (replace(ONE, attachable="it is a zombie"), OTHER)) == OTHER.key


@pytest.mark.parametrize("pid", [5000, 5001])
def test_a_pid_chooses_the_engine_that_any_of_its_processes_belongs_to(pid):
    assert focus_after(Config(pid=pid), (ONE, OTHER)) == OTHER.key


def test_a_pid_that_is_not_there_chooses_nothing_even_if_one_engine_is_alone():
    assert focus_after(Config(pid=1), (ONE,)) is None


def test_a_gpu_chooses_the_target_that_uses_it():
    assert focus_after(Config(gpu=1), (ONE, TRAINING)) == TRAINING.key
    assert focus_after(Config(gpu=7), (ONE, TRAINING)) is None


# -- a URL ---------------------------------------------------------------------


@pytest.mark.parametrize("url", [URL, "http://localhost:8000/metrics", "http://[::1]:8000", "http://0.0.0.0:8000"])
def test_a_local_url_chooses_the_engine_that_listens_there_and_is_asked_as_given(url):
    follower = Follower(Config(url=url))
    targets = follower.with_url_target((ONE, OTHER))
    assert [(t.key, t.urls, t.urls_from) for t in targets] == [
        (ONE.key, (url,), "flag"),
        (OTHER.key, ("http://127.0.0.1:8001",), "argv"),
    ]
    follower.update(targets)
    assert follower.focus == ONE.key


def test_a_url_of_an_engine_with_a_page_per_rank_is_that_page_alone_and_says_so():
    urls = tuple(f"http://127.0.0.1:{port}" for port in (8000, 8001, 8002))
    asked = "http://127.0.0.1:8001"
    (target,) = Follower(Config(url=asked)).with_url_target((replace(ONE, urls=urls),))
    assert (target.key, target.urls) == (ONE.key, (asked,))
    assert target.notes == ("--url names one of its 3 pages: --pid 4711 reads all",)
    (alone,) = Follower(Config(url=URL)).with_url_target((ONE,))
    assert alone.notes == ONE.notes


@pytest.mark.parametrize("url", ["http://gpu-7:8000", "http://127.0.0.1:9999", "https://127.0.0.1"])
def test_a_url_of_no_local_engine_is_a_target_without_processes(url):
    follower = Follower(Config(url=url))
    targets = follower.with_url_target((ONE,))
    assert [t.urls for t in targets] == [ONE.urls, (url,)]
    assert (targets[1].processes, targets[1].remote) == ((), True)
    assert targets[1].notes[0].startswith(NO_PROCESS_DATA)
    follower.update(targets)
    assert follower.focus == targets[1].key == f"url:{url}"


def test_a_url_beside_a_pid_is_that_process_s_wherever_it_leads():
    contained = replace(ONE, urls=(), urls_from=None)
    (target, other) = Follower(Config(url="http://10.0.0.7:80", pid=4711)).with_url_target((contained, OTHER))
    assert (target.urls, target.urls_from, target.pids) == (("http://10.0.0.7:80",), "flag", ONE.pids)
    assert other == OTHER
    assert not target.remote


def test_no_target_knows_the_password_or_token_of_a_url():
    follower = Follower(Config(url="http://user:hunter2@gpu-7:8000/metrics?token=hunter2"))
    targets = follower.with_url_target(())
    assert "hunter2" not in repr(targets) + repr(follower.update(targets))
    local = Follower(Config(url="http://user:hunter2@127.0.0.1:8000"))
    assert "hunter2" not in repr(local.with_url_target((ONE,)))


def test_a_url_that_answers_later_from_a_local_engine_becomes_that_engine():
    follower = Follower(Config(url=URL))
    follower.update(follower.with_url_target(()))
    assert follower.focus == f"url:{URL}"
    happened = follower.update(follower.with_url_target((ONE,)))
    assert happened == [f"{URL} is vllm org/model-a (pid 4711)"]
    assert follower.focus == ONE.key


def test_an_engine_named_by_url_is_waited_for_and_found_again():
    follower = Follower(Config(url=URL))
    follower.update(follower.with_url_target((ONE,)))
    assert "has exited" in follower.update(follower.with_url_target(()))[0]
    assert follower.update(follower.with_url_target(())) == []
    assert follower.update(follower.with_url_target((RESTARTED,))) == ["re-attached to vllm org/model-a (pid 9000)"]


# -- restarts ------------------------------------------------------------------


def test_a_target_that_exits_is_missed_once_and_found_again_under_its_new_pid():
    follower = Follower(Config())
    follower.update((ONE,))
    assert follower.update(()) == ["vllm org/model-a (pid 4711) has exited; waiting for it to come back"]
    assert follower.update(()) == []
    assert follower.update((RESTARTED,)) == ["re-attached to vllm org/model-a (pid 9000)"]
    assert follower.focus == RESTARTED.key


def test_a_restart_between_two_looks_is_noticed():
    follower = Follower(Config())
    follower.update((ONE,))
    assert follower.update((RESTARTED,)) == [
        "vllm org/model-a (pid 4711) has exited; waiting for it to come back",
        "re-attached to vllm org/model-a (pid 9000)",
    ]


def test_a_target_chosen_by_pid_is_followed_through_a_restart_too():
    assert focus_after(Config(pid=4711), (ONE, OTHER), (OTHER,), (OTHER, RESTARTED)) == RESTARTED.key


def test_an_engine_on_another_port_is_not_the_one_that_exited():
    assert focus_after(Config(), (ONE,), (), (OTHER,)) == ONE.key


def test_a_process_of_another_kind_on_the_same_port_is_not_the_engine():
    assert focus_after(Config(), (ONE,), (replace(RESTARTED, engine="sglang"),)) == ONE.key


def test_without_a_port_the_same_command_and_model_is_the_same_service():
    offline = a_target(4711, None)
    assert focus_after(Config(), (offline,), (), (a_target(9000, None),)) == "9000@1000"
    assert focus_after(Config(), (offline,), (), (a_target(9000, None, model="org/model-b"),)) == offline.key


def test_a_twin_that_ran_beside_the_target_is_not_its_successor():
    mine, twin = a_target(4711, None), a_target(4800, None)
    follower = Follower(Config(pid=4711))
    follower.update((mine, twin))
    follower.update((mine, twin))
    follower.update((twin,))
    assert follower.focus == mine.key
    follower.update((twin, a_target(9000, None)))
    assert follower.focus == "9000@1000"


def test_a_target_that_was_only_not_seen_once_is_said_to_be_back():
    follower = Follower(Config())
    follower.update((ONE,))
    follower.update(())
    assert follower.update((ONE,)) == ["vllm org/model-a (pid 4711) is back"]
    assert follower.focus == ONE.key


def test_the_users_choice_replaces_the_focus_and_is_followed():
    follower = Follower(Config())
    follower.update((ONE, OTHER))
    follower.choose(OTHER)
    assert follower.update((ONE, OTHER)) == []
    assert follower.focus == OTHER.key
    assert "has exited" in follower.update((ONE,))[0]


def test_a_target_is_described_in_a_few_words():
    assert describe(ONE) == "vllm org/model-a (pid 4711)"
    assert describe(replace(ONE, root_pid=None)) == "vllm org/model-a at http://127.0.0.1:8000"
    assert describe(Target(key="k", engine="vllm")) == "vllm"
