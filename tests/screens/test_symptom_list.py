"""The list of symptoms and the overview's: choosing, opening, and following what changes."""

from __future__ import annotations

import time
from dataclasses import replace

from gputop_llm.tui.panels.symptom_list import symptom_list
from gputop_llm.tui.panels.symptoms import symptoms_panel
from tests.support import symptom_screens as frames
from tests.support.frame_parts import AT_S
from tests.support.screen_text import line_with, reversed_rows, screen_lines, screen_text, words_of


async def test_the_list_is_ranked_with_what_follows_below_its_root(running):
    async with running(frames.incident(), (120, 40)) as it:
        await it.press("5")
        rows = [
            line_with(it.app, words) for words in ("▲ critical KV cache", "  ▲ critical TTFT", "  ◆ warning  the queue")
        ]
        rows += [
            line_with(it.app, words) for words in ("◆ warning  GPU 0 is held", "○ note     GPU 0 is bandwidth-bound")
        ]
        assert rows == sorted(rows)


async def test_each_symptom_has_since_when_its_trend_and_a_strip(running):
    async with running(frames.incident(), (120, 40)) as it:
        await it.press("5")
        below = screen_lines(it.app)[line_with(it.app, "▲ critical KV cache") + 1]
        assert "kv-pressure · since 16:05:41 (3 m) ↑ · llama-1b · high confidence" in below
        assert below.endswith("▅▅▅▅▅▅▅▅▅     ──────██████████"), "milder ten minutes ago, unseen between, critical now"


async def test_arrows_go_from_symptom_to_symptom_and_enter_opens_the_page(running):
    async with running(frames.incident()) as it:
        await it.press("5", "down", "down", "enter")
        assert it.app.screen.command == "symptom"
        assert "queue-growing" in screen_lines(it.app)[1]
        await it.press("escape", "k", "enter")
        assert "ttft-high" in screen_lines(it.app)[1]
        await it.press("backspace")
        assert it.app.screen.command == "symptoms"
        await it.press("home", "j", "enter")
        assert "ttft-high" in screen_lines(it.app)[1]


async def test_a_list_that_is_longer_than_the_screen_opens_at_its_first_root(running):
    others = [replace(frames.CAPPED, subject=frames.gpu(index), id="hw-slowdown") for index in range(1, 12)]
    async with running(frames.later(frames.incident(), 1, frames.ROOT, *others), (80, 24)) as it:
        await it.press("5")
        assert it.app.screen.rows.offset_rows == 0
        assert frames.ROOT.headline[:40] in screen_lines(it.app)[2]


async def test_both_lines_of_a_chosen_symptom_are_marked_and_in_view(running):
    async with running(frames.eight_capped()) as it:
        await it.press("5", "end")
        marked = reversed_rows(it.app)
        assert len(marked) == 2
        assert "GPU 7 is held" in screen_lines(it.app)[marked[0]]


async def test_what_stands_below_the_last_symptom_can_be_scrolled_to(running):
    async with running(frames.incident(), (80, 15)) as it:
        await it.press("5", "end", *["down"] * 20)
        assert "ttft-high.p95_s = 0.5 (SLO --slo-ttft)" in screen_lines(it.app)[-2]
        assert "more lines" not in screen_lines(it.app)[-1]
        await it.press("home", *["up"] * 5)
        assert "▲ critical KV cache" in screen_lines(it.app)[2]


async def test_a_list_without_a_symptom_scrolls_too(running):
    async with running(frames.blind(), (40, 10)) as it:
        await it.press("escape", "5")
        before = screen_lines(it.app)
        await it.press("down", "down")
        assert screen_lines(it.app)[2] == before[4]


async def test_two_clicks_on_either_line_open_the_page(running):
    async with running(frames.incident()) as it:
        await it.press("5")
        row = line_with(it.app, "power-capped · since")
        for _ in range(2):
            await it.pilot.click(offset=(20, row))
            await it.pilot.pause()
        assert it.app.screen.command == "symptom"
        assert "power-capped" in screen_lines(it.app)[1]


async def test_the_choice_stays_on_its_symptom_when_the_ranking_changes(running):
    base = frames.incident()
    async with running(base, (80, 15)) as it:
        await it.press("5", "down", "down", "down")
        chosen = it.app.screen.rows.cursor
        assert chosen == f"symptom:{frames.CAPPED.key}"
        others = [replace(frames.CAPPED, subject=frames.gpu(index), id="hw-slowdown") for index in range(1, 8)]
        await it.push(frames.later(base, 1, *others, frames.ROOT, frames.CAPPED))
        assert it.app.screen.rows.cursor == chosen
        assert any("power-capped · since" in line for line in screen_lines(it.app)), "and it is followed into view"
        await it.press("enter")
        assert "power-capped" in screen_lines(it.app)[1]


async def test_the_choice_follows_a_symptom_that_clears_to_those_that_are_over(running):
    base = frames.one_root()
    async with running(base) as it:
        await it.press("5")
        over = frames.held(frames.ROOT, -30)
        await it.push(frames.later(base, 30, log=(over,)))
        assert it.app.screen.rows.cursor == f"symptom:{frames.ROOT.key}"
        assert line_with(it.app, "Cleared within the last hour") < line_with(it.app, "cleared    KV cache 97 % full")
        await it.press("enter")
        text = screen_text(it.app)
        assert "cleared at 16:09:16" in text
        assert "KV cache usage" in text, "with the evidence that it had"


async def test_held_back_symptoms_say_why_in_the_list_and_on_their_page(running):
    async with running(frames.warming()) as it:
        await it.press("5")
        assert "Held back not raised: the engine is warming up" in screen_text(it.app)
        await it.press("down", "enter")
        assert "ttft-high" in screen_lines(it.app)[1]
        assert "held back, not raised: the engine is warming up; the condition holds" in screen_text(it.app)


async def test_the_overview_counts_what_is_held_back(running):
    async with running(frames.warming(), (120, 40)) as it:
        assert "held back  2: the engine is warming up" in screen_text(it.app)


async def test_a_condition_that_has_not_held_for_long_enough_is_no_symptom_yet(running):
    async with running(frames.warming()) as it:
        await it.press("5")
        assert line_with(it.app, "Not yet for long enough") + 1 == line_with(it.app, "GPU 0 is busy only 46 %")
        await it.press("end", "enter")
        assert "not raised yet: the condition must hold for longer; it does since 16:08:43 (3 s)" in words_of(it.app)


async def test_what_can_t_be_told_says_what_it_needs_once_for_all_gpus(running):
    async with running(frames.blind()) as it:
        await it.press("escape", "5")
        row = line_with(it.app, "needs GPM counters (Hopper or newer)")
        told = "gpu-busy-not-working, bandwidth-bound, compute-bound of GPUs 0-7"
        assert screen_lines(it.app)[row + 1].strip() == told


async def test_a_node_of_which_nothing_can_be_judged_is_not_called_healthy(running):
    async with running(frames.blind(), (120, 40)) as it:
        await it.press("escape")
        text = screen_text(it.app)
        assert "nothing can be judged yet" in text
        assert "no symptoms" not in text
        await it.press("5")
        assert "no symptoms" not in screen_text(it.app)


async def test_a_frame_that_was_not_judged_says_so(running):
    async with running(replace(frames.full_cache(), symptoms=None)) as it:
        for key in ("1", "5"):
            await it.press(key)
            assert "the rules did not judge this frame" in screen_text(it.app)


async def test_changed_thresholds_are_named_in_the_list_and_beside_the_evidence(running):
    async with running(frames.incident()) as it:
        await it.press("5")
        assert "kv-pressure.preemptions_per_s = 0 (config file)" in screen_text(it.app)
        await it.press("enter")
        assert "preemptions         1.20/s        0/s  10 s · vllm /metrics · limit: config file" in screen_text(it.app)


async def test_a_click_on_a_symptom_of_the_overview_opens_its_page_and_escape_goes_back(running):
    async with running(frames.one_root()) as it:
        await it.pilot.click(offset=(20, line_with(it.app, "▲ critical KV cache")))
        await it.pilot.pause()
        assert it.app.screen.command == "symptom"
        await it.press("5", "escape")
        assert it.app.screen.command == "overview"
        await it.pilot.click(offset=(4, line_with(it.app, "─ Symptoms")))
        await it.pilot.pause()
        assert it.app.screen.command == "symptoms"


async def test_the_same_symptom_of_eight_gpus_takes_one_line_at_80x24(running):
    async with running(frames.eight_capped()) as it:
        await it.press("escape")
        (line,) = [line for line in screen_lines(it.app) if "power limit" in line]
        assert "×8" in line


async def test_with_several_engines_a_headline_names_its_engine(running):
    async with running(frames.eight_capped()) as it:
        await it.press("escape")
        assert "▲ critical llama-1b: KV cache 97 % full" in screen_text(it.app)


async def test_symptoms_come_and_go_without_moving_what_matters_at_80x24(running):
    """One root with all that follows from it takes no line from any other panel."""
    base = frames.one_root()
    async with running(frames.later(base, 0)) as it:
        before = screen_lines(it.app)
        await it.push(base)
        after = screen_lines(it.app)
        assert after[:21] == before[:21]
        assert after[22].startswith("▲ critical KV cache 97 % full, 1.20 preemptions/s, 41 waiting · 3 m ↑ +2")


async def test_what_cleared_is_told_among_the_events(running):
    async with running(frames.healthy(), (120, 40)) as it:
        it.session.events = ((AT_S - 30, "attached to vllm x"), (AT_S - 900, "vllm x has exited"))
        await it.tick()
        lines = screen_lines(it.app)
        first = line_with(it.app, "attached to vllm x")
        assert "16:02:26 cleared after 2 m: engine-core 624" in lines[first + 1]


async def test_symptoms_cost_little_of_a_frame(running):
    """A millisecond at most on a machine of its own; generous here."""
    async with running(frames.eight_capped(), (120, 40)) as it:
        await it.press("escape")
        frame, took = frames.eight_capped(), []
        for _ in range(50):
            began = time.thread_time()
            symptoms_panel(frame, (), 120, 12)
            symptom_list(frame, it.app.view.trails, it.app.seen, 120)
            took.append(time.thread_time() - began)
        assert min(took) < 0.003
