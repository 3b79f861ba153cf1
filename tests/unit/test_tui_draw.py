"""Lines, bars, rules and charts: what panels are made of."""

from __future__ import annotations

import pytest

from gputop_llm.model import Latency, Part, Quantile
from gputop_llm.tui.charts import chart, spark
from gputop_llm.tui.draw import bar, beside, fit, joined, pad, plain, rule, warned_rule, width_of, wrapped
from gputop_llm.tui.panels.common import quantile_text, ranges, small_pct
from gputop_llm.tui.panels.engine import nice_top
from gputop_llm.tui.panels.engine_details import engine_details
from gputop_llm.tui.panels.gpu_words import amount_text, as_many, flow_text
from gputop_llm.tui.panels.latency import latency_table
from gputop_llm.tui.trails import Trails
from tests.support import frames


def text_of(line):
    return "".join(text for text, _ in line)


def test_a_line_too_long_is_cut_with_an_ellipsis_and_one_too_short_is_padded():
    assert text_of(fit([("abc", ""), ("defg", "dim")], 5)) == "abcd…"
    assert text_of(fit([("abc", ""), ("defg", "dim")], 3)) == "ab…"
    assert text_of(fit([("abc", "")], 5)) == "abc  "


def test_a_wide_character_is_never_cut_in_half():
    assert text_of(fit([("模型名", "")], 5)) == "模型…"
    assert width_of(fit([("模型名", "")], 4)) == 4
    assert width_of([(pad("模型名", 4), "")]) == 4


def test_bars_have_a_fixed_scale_and_unknown_has_none():
    assert text_of(bar(0, 4, "")) == "────"
    assert text_of(bar(50, 4, "")) == "━━──"
    assert text_of(bar(100, 4, "")) == "━━━━"
    assert text_of(bar(250, 4, "")) == "━━━━"
    assert text_of(bar(None, 4, "")) == "    "


def test_a_little_is_not_nothing():
    assert text_of(bar(0.4, 10, "")).startswith("╸")


def test_a_rule_holds_title_and_remark_and_drops_the_remark_first():
    assert text_of(rule([("GPU", "title")], 20, [("now", "dim")])) == "─ GPU ──────── now ─"
    assert text_of(rule([("GPU", "title")], 10, [("remark", "dim")])) == "─ GPU ────"


def test_a_warning_in_a_rule_is_cut_and_never_left_out():
    title, warning = [("GPU 0 NVIDIA H100 80GB HBM3", "title")], [("▲ values 14 s old: no answer", "warn")]
    assert (
        text_of(warned_rule(title, 66, warning)) == "─ GPU 0 NVIDIA H100 80GB HBM3 ───── ▲ values 14 s old: no answer ─"
    )
    assert text_of(warned_rule(title, 56, warning)) == "─ GPU 0 NVIDIA H100 80GB HBM3 ─ ▲ values 14 s old: no… ─"
    assert text_of(warned_rule(title, 40, warning)) == "─ GPU 0 NVIDIA… ─ ▲ values 14 s old: … ─"
    assert text_of(warned_rule(title, 40, [])) == "─ GPU 0 NVIDIA H100 80GB HBM3 ──────────"


def test_parts_that_do_not_fit_are_left_out_and_later_ones_may_still_fit():
    assert text_of(joined([[("aaa", "")], [("bbbbbbbb", "")], [("cc", "")]], 8)) == "aaa · cc"


def test_two_columns_stand_beside_each_other():
    rows = beside([[("a", "")], [("b", "")]], [[("c", "")]], 3, 8)
    assert plain(rows) == "a    c\nb"


def test_text_wraps_at_spaces_and_breaks_only_what_is_longer_than_a_line():
    assert plain(wrapped("one two three", 7)) == "one two\nthree"
    assert plain(wrapped("x abcdefgh", 4)) == "x\nabcd\nefgh"


def test_a_wide_character_in_a_column_of_one_cell_ends():
    assert wrapped("模型", 1)


def test_constant_100_and_constant_0_differ_and_unknown_is_blank():
    assert spark([100.0] * 3, 100.0) == "███"
    assert spark([0.0] * 3, 100.0) == "▁▁▁"
    assert spark([None, 50.0, None], 100.0) == " ▅ "
    assert spark([], 100.0) == ""


def test_values_beyond_the_scale_stay_in_the_chart():
    assert spark([-5.0, 250.0], 100.0) == "▁█"
    assert len(chart([-5.0, 250.0], 2, 100.0)) == 2


def test_a_chart_draws_two_values_per_cell_and_joins_them():
    assert chart([0.0, 0.0], 1, 100.0) == ["⣀"]
    assert chart([0.0, 100.0], 1, 100.0) == ["⡸"]
    assert chart([100.0, 100.0], 2, 100.0) == ["⠉", " "]
    assert chart([0.0, 0.0, 100.0], 2, 100.0) == [" ⡇", "⣀⠇"]


def test_a_gap_is_not_joined():
    assert chart([0.0, None, None, 100.0], 1, 100.0) == ["⡀⠈"]


def test_a_scale_of_nothing_is_drawn_at_the_bottom():
    assert spark([0.0, 3.0], 0.0) == "▁▁"
    assert chart([0.0, 0.0], 1, 0.0) == ["⣀"]


@pytest.mark.parametrize(
    ("highest", "top"), [(0, 1), (0.07, 0.1), (1, 1), (1.2, 2), (37, 50), (5000, 5000), (9702, 10000)]
)
def test_scales_end_at_round_numbers(highest, top):
    assert nice_top([None, 0.0, highest]) == pytest.approx(top)


@pytest.mark.parametrize(
    ("quantile", "width", "text"),
    [
        (None, 9, "–"),
        (Quantile(0.04, 0.06, 0.047), 9, "47 ms"),
        (Quantile(0.0, 0.3, None), 9, "≤300 ms"),
        (Quantile(80.0, None, None), 9, ">80.0 s"),
        (Quantile(0.001, 0.005, None), 9, "1–5 ms"),
        (Quantile(0.5, 1.9, None), 14, "500 ms–1.9 s"),
        (Quantile(0.5, 1.9, None), 11, "500ms–1.9s"),
        (Quantile(0.5, 1.9, None), 7, "≤1.90 s"),
        (Quantile(1.0, 5.0, None), 9, "1–5 s"),
    ],
)
def test_a_quantile_is_as_exact_as_its_bucket_and_the_room(quantile, width, text):
    assert quantile_text(quantile, width) == text


@pytest.mark.parametrize(("value", "text"), [(None, "–"), (0, "0 %"), (0.42, "0.4 %"), (9.96, "10 %"), (97.2, "97 %")])
def test_small_shares_keep_a_decimal(value, text):
    assert small_pct(value) == text


@pytest.mark.parametrize(
    ("numbers", "text"), [((), "–"), ((3,), "3"), ((0, 1, 2, 3), "0-3"), ((0, 2, 3, 7), "0,2-3,7")]
)
def test_gpu_numbers_are_written_as_ranges(numbers, text):
    assert ranges(numbers) == text


def test_amounts_share_their_unit():
    assert amount_text(71.1 * 2**30, 140 * 2**30) == "71.1 of 140 GiB"
    assert amount_text(512 * 2**20, 2**40) == "512 MiB of 1.0 TiB"
    assert amount_text(None, 2**40) == "1.0 TiB"
    assert amount_text(None, None) == "–"
    assert flow_text(42.3 * 2**20, 12.9 * 2**20) == "in 42.3 out 12.9 MiB/s"
    assert flow_text(2 * 2**30, 12.9 * 2**20) == "in 2.0 GiB/s out 12.9 MiB/s"
    assert flow_text(None, None) == "–"
    assert flow_text(None, 2**20) == "in – out 1.0 MiB/s"


def test_words_that_do_not_fit_are_counted():
    words = ["▲ Xid 63", "▲ ECC 2", "▲ lost"]
    assert as_many(words, 40) == "▲ Xid 63  ▲ ECC 2  ▲ lost"
    assert as_many(words, 18) == "▲ Xid 63  +2"
    assert as_many(words, 5) == "▲ +3"


class _Usual(Trails):
    def __init__(self, values):
        self.values_ = values

    def usual(self, name):
        return self.values_.get(name)


def row_of(live, usual, name, width=62):
    table = latency_table(live, _Usual({f"e.{name.lower()}_p95_s": usual}), "e.", width, 7)
    return next(text_of(line) for line in table if text_of(line).startswith(name))


def test_p95_far_above_the_usual_is_pointed_at_in_words_and_number():
    live = frames.live()
    assert "36 ms ▲2.0×" in row_of(live, 0.036, "TTFT")
    assert "144 ms ▼0.5×" in row_of(live, 0.144, "TTFT")
    near = row_of(live, 0.070, "TTFT")
    assert "70 ms" in near
    assert "▲" not in near
    assert "▼" not in near


def test_the_usual_of_a_bucket_bound_is_shown_as_a_bound():
    assert "≤10 ms" in row_of(frames.live(), 0.01, "ITL").split("96.6k")[1]


def test_an_engine_with_tpot_only_shows_that_instead_of_itl():
    live = frames.live()
    latency = {k: v for k, v in live.latency.items() if k != "itl"}
    table = latency_table(frames.replace(live, latency=latency), _Usual({}), "e.", 62, 7)
    assert [text_of(line).split()[0] for line in table[1:]] == ["TTFT", "TPOT", "queue", "prefill", "decode", "e2e"]


def test_with_little_room_the_least_telling_rows_and_columns_go_first():
    table = latency_table(frames.live(), _Usual({}), "e.", 42, 4)
    assert [text_of(line).split()[0] for line in table[1:]] == ["TTFT", "ITL", "e2e"]
    assert text_of(table[0]).split() == ["p50", "p95", "p99", "mean"]


def test_latency_without_observations_shows_dashes():
    live = frames.replace(frames.live(), latency={"ttft": Latency(0, None, None, None, None)})
    table = latency_table(live, _Usual({}), "e.", 62, 7)
    assert text_of(table[1]).split() == ["TTFT", "–", "–", "–", "–", "0", "–"]


def test_an_endpoint_that_never_answered_has_no_last_good_answer():
    frame = frames.unreachable()
    silent = frames.replace(frame.engines[0], scrape=Part(took_s=5.0, error="no answer within 5 s", period_s=25.0))
    page = plain(engine_details(frames.replace(frame, engines=(silent,)), 100))
    assert "last good answer          none yet, last try took 5.00 s, asked every 25 s" in page
