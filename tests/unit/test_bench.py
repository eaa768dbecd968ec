"""The pure parts of the measurements: figures, latencies, the simulated day, the page."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import all as runner
from bench import gate, report
from bench.bulk import Times
from bench.growth import Sample, Side, judge
from bench.latency import Events, Half, Latencies, Visible, Window, find_latencies, split_by_load
from bench.maintenance import Day, longest_wait, plan_day, plan_merges, split, write_log
from bench.measure import Figure, quantile, read_processor_time, stolen_share
from bench.swap import BARE_CROWD, COLD, CROWD, DOWN_SECONDS, SPARE, Clock, order_steps
from bench.swap import judge as judge_swaps
from bench.week import Stage, Week
from switchyard.layout import PROJECT
from switchyard.tables.merging import FAN_IN

FAST = Figure("fast <join>", 12_345.0, 20_000.0, "events/s", 0.5, "at least", "an append")
SLOW = Figure("slow", 3.0, 2.0, "s", 1.2, against="an append")
NOW = datetime(2026, 1, 2, tzinfo=UTC)
MACHINE = {"cores": 2, "memoryGib": 24, "system": "Linux", "python": "3", "java": "17", "spark": "4"}
RUN = {"measuredAt": NOW.isoformat(), "commit": "abc1234"}


def result_of(*figures: Figure, seconds: float = 60) -> dict[str, Any]:
    return {
        "figures": [asdict(figure) | {"ratio": 1, "met": True} for figure in figures],
        "facts": {},
        "seconds": seconds,
        "stolen": 0.126,
        **RUN,
    }


def test_a_figure_is_met_on_its_side_of_the_target() -> None:
    assert FAST.is_met
    assert not SLOW.is_met
    assert Figure("even", 1.2, 1.0, "s", 1.2).is_met
    assert not Figure("few", 0.4, 1.0, "s", 0.5, "at least").is_met


@pytest.mark.parametrize(("share", "value"), [(0.01, 1.0), (0.5, 2.0), (0.75, 3.0), (0.95, 4.0), (1.0, 4.0)])
def test_a_quantile_is_a_value_that_was_measured(share: float, value: float) -> None:
    assert quantile([4.0, 1.0, 3.0, 2.0], share) == value


def test_the_gate_is_compared_with_the_stream_and_with_the_gate_of_the_smallest_size() -> None:
    small, large, one = (
        gate.Sample(rows, 40.0, seconds, 1_000.0, "") for rows, seconds in ((10**6, 6.0), (10**7, 9.0), (10**6, 9.0))
    )
    figures = gate.judge([small, large], one)
    assert [(figure.ratio, figure.is_met) for figure in figures] == [
        (9 / 40, False),
        (6 / 40, True),
        (9 / 40, False),
        (1.5, True),
        (1_000 / 2_048, True),
    ]


@pytest.mark.parametrize("rows", [10_000, 1_000_000, 10_000_000])
def test_the_histories_of_the_gate_make_about_so_many_rows(rows: int) -> None:
    history = gate.History.of_many(rows)
    assert (history.events / 2) ** 2 / history.people == pytest.approx(rows, rel=0.01)


def test_a_join_is_compared_with_the_mean_of_the_appends_around_it() -> None:
    (figure,) = Times({"asof": 50.0}, (15.0, 25.0)).judge(events=1000)
    assert (figure.ours, figure.baseline, figure.is_met) == (20.0, 50.0, True)


def test_an_event_is_visible_with_the_first_batch_that_ends_behind_it() -> None:
    events = Events(np.array([0, 0, 0, 1]), np.array([0, 9, 10, 3]), np.array([1.0, 2.0, 3.0, 4.0]))
    seen = [
        Visible(20.0, {"users": {0: 10, 1: 4}}),
        Visible(10.0, {"users": {0: 5}, "accounts": {0: 99}}),
        Visible(30.0, {"users": {0: 10, 1: 4}}),
    ]
    assert find_latencies("users", events, seen).seconds.tolist() == [9.0, 18.0, np.inf, 16.0]


def test_events_of_a_busy_host_are_told_from_those_of_a_quiet_one() -> None:
    latencies = Latencies(np.array([0.0, 9.0, 10.0, 25.0, 30.0]), np.array([1.0, 2.0, 5.0, 7.0, 3.0]))
    windows = [Window(0.0, 10.0, 0.1), Window(10.0, 20.0, 0.3), Window(20.0, 30.0, 0.4), Window(30.0, 40.0, 0.0)]
    assert split_by_load(latencies, windows) == (Half(0.05, 2.0), Half(0.35, 5.0))


def test_a_batch_is_compared_with_the_small_one_of_its_minutes_and_memory_with_a_tenth() -> None:
    sides = [(Side(3100, 1.6, 9), Side(300, 1.5, 9)), (Side(10_700, 1.2, 9), Side(320, 0.8, 9))]
    samples = [Sample(1000, 1100), Sample(3000, 1150, sides[0]), Sample(10_000, 1200, sides[1])]
    figures = judge("left", samples)
    assert [(figure.ours, figure.baseline) for figure in figures] == [
        (1.6, 1.5),
        (1.2, 0.8),
        (1200, 1100),
        (1200, 2048),
    ]


def test_the_memory_of_a_single_size_is_compared_with_the_limit_only() -> None:
    sample = Sample(160_000, 1024, (Side(8_000_000, 0.9, 20_000), Side(1_000_000, 0.8, 20_000)))
    batch, memory = judge("left, few people", [sample])
    assert (batch.name, batch.against) == ("growth, left, few people, a batch at 8.0M rows", "the same at 1.0M rows")
    assert (memory.baseline, memory.ratio) == (2048, 0.5)


def test_a_swap_to_a_crowd_is_compared_with_the_bare_job_that_reads_the_same() -> None:
    plain = {f"flip, {kind}, median seconds": seconds for kind, seconds in ((COLD, 6.0), (SPARE, 2.0), (CROWD, 9.0))}
    done = {f"swaps, {kind}": 1 for kind in (COLD, SPARE, CROWD)}
    bare = {"bare job, median seconds": 8.0, f"{BARE_CROWD}, median seconds": 10.0}
    figures = judge_swaps(plain | done | bare)
    assert [(figure.ours, figure.baseline) for figure in figures] == [(6.0, 8.0), (2.0, 8.0), (9.0, 10.0)]
    del done[f"swaps, {CROWD}"]
    assert len(judge_swaps(plain | done | bare)) == 2


def test_commands_are_judged_by_their_own_seconds_and_the_slowest_swap_by_a_bare_job() -> None:
    found = {
        "bare job, median seconds": 50.0,
        f"flip, {SPARE}, p95 seconds": 20.0,
        "requested, median seconds": 0.5,
        "requested, p95 seconds": 2.5,
        "rollback, median seconds": 0.9,
    }
    verdicts = {figure.name: (figure.ratio, figure.is_met) for figure in judge_swaps(found)}
    assert verdicts == {
        "swap with a spare, p95": (0.4, False),
        "command to REQUESTED, p50": (0.5, True),
        "command to REQUESTED, p95": (1.25, False),
        "rollback to a lingering generation": (0.9, True),
    }


def test_the_second_half_of_a_week_is_compared_with_the_first_and_a_batch_with_that_of_the_first_hour() -> None:
    hour = Stage(72_000, 80_000, 4, 10, 1000)
    half, end = Stage(864_000, 1_000_000, 40, 110, 1500), Stage(1_728_000, 2_100_000, 81, 230, 1600)
    week = Week(hour, half, end, 0.5, 0.4)
    assert [(figure.name, figure.ours, figure.baseline, figure.is_met) for figure in week.judge()] == [
        ("1 days of demo, joined rows", 2_100_000, 1_728_000, True),
        ("1 days of demo, joined rows", 1_100_000, 1_000_000, True),
        ("1 days of demo, disk of the tables", 41, 40, True),
        ("1 days of demo, disk of the checkpoint", 120, 110, True),
        ("1 days of demo, memory", 1600, 1500, True),
        ("1 days of demo, memory", 1600, 2048, True),
        ("1 days of demo, a batch of one second", 0.5, 0.4, True),
    ]
    assert week.describe()["days simulated"] == 1


def test_the_run_of_all_leaves_out_what_takes_too_long_unless_it_is_small() -> None:
    assert set(runner.choose_all(is_quick=True)) - set(runner.choose_all(is_quick=False)) == {"week", "gate", "idle"}


def test_the_wait_between_two_maintenances_is_read_from_the_schedule() -> None:
    assert longest_wait('schedule=CronTriggerTimetable("17 3 * * *", timezone="UTC")') == timedelta(days=1)
    assert longest_wait('schedule=CronTriggerTimetable("5,20 * * * *", timezone="UTC")') == timedelta(minutes=45)
    assert longest_wait((PROJECT / "dags" / "switchyard_maintenance.py").read_text()) <= timedelta(days=1)
    with pytest.raises(SystemExit, match="no CronTriggerTimetable"):
        longest_wait("schedule=None")


def test_the_day_ends_just_before_the_driver_merges_again() -> None:
    day = plan_day(86_400, timedelta(hours=1), timedelta(minutes=10), NOW)
    assert (day.late_commits, day.small_commits, day.merged_commits) == (4191, FAN_IN - 1, 86_369)
    assert (day.version_of(86_369), day.version_of(86_370)) == (86_369, 86_371)
    assert day.at(86_400) == NOW
    assert day.at(1) == NOW - timedelta(seconds=86_399)
    assert plan_day(100, timedelta(days=1), timedelta(), NOW) == Day(NOW, 100, 95)


def test_a_driver_leaves_few_files_and_every_commit_is_in_one() -> None:
    counts = plan_merges(86_400, lambda commits: 9_000 + commits * 1_500, 4 * 2**20)
    assert sum(counts) == 86_400
    assert len(counts) < 86_400 / FAN_IN
    assert plan_merges(FAN_IN - 1, lambda commits: commits, 100) == [1] * (FAN_IN - 1)
    assert plan_merges(FAN_IN, lambda commits: commits, 100) == [FAN_IN]


def test_parts_hold_every_number_once() -> None:
    assert split(1, 10, 4) == [(1, 4), (5, 4), (9, 2)]
    assert split(1, 0, 4) == []


def test_the_log_of_a_day_has_every_commit_and_one_maintenance(tmp_path: Path) -> None:
    def entry(path: str) -> dict[str, Any]:
        return {"path": path, "partitionValues": {"generation": "1"}, "size": 1, "dataChange": True, "stats": "{}"}

    write_log(tmp_path, Day(NOW, 5, FAN_IN + 2), [entry("full")], [entry("fourth"), entry("fifth")])
    logs = [[json.loads(line) for line in path.read_text().splitlines()] for path in sorted(tmp_path.iterdir())]
    live: set[str] = set()
    for actions in logs:
        live -= {action["remove"]["path"] for action in actions if "remove" in action}
        live |= {action["add"]["path"] for action in actions if "add" in action}
    assert len(logs) == 6
    assert live == {"full", "fourth", "fifth"}


def test_the_table_shows_each_figure_with_its_verdict() -> None:
    table = report.make_table({"bulk": result_of(FAST), "latency": result_of(SLOW)})
    assert "| fast <join> | 12,300 events/s | 20,000 events/s: an append | 0.62 × | ≥ 0.5 × | met |" in table
    assert "| slow | 3.00 s | 2.00 s: an append | 1.50 × | ≤ 1.2 × | **missed** |" in table


def test_a_plot_has_two_bars_for_each_figure_within_its_width() -> None:
    drawn = ElementTree.fromstring(report.draw_plot([FAST, SLOW]))
    bars = [element for element in drawn.iter() if element.tag.endswith("rect")][1:]
    assert len(bars) == 4
    assert all(float(bar.attrib["x"]) + float(bar.attrib["width"]) < report.WIDTH for bar in bars)
    assert float(bars[0].attrib["width"]) < float(bars[1].attrib["width"])


def test_facts_of_one_subject_share_a_line_and_long_ones_have_their_own() -> None:
    facts = {"events": 5, "flip, cold": 2, "flip, with a spare": 1, "at the end": "9 rows, 1 MB", "gap, seconds": 0}
    assert report.list_facts(facts).splitlines() == [
        "- events: 5; gap, seconds: 0",
        "- flip: cold: 2; with a spare: 1",
        "- at the end: 9 rows, 1 MB",
    ]


def test_the_page_keeps_its_prose() -> None:
    page = "before\n<!-- bench:table -->\nold\n<!-- /bench:table -->\nafter \\1\n"
    once = report.splice(page, "table", "new \\1")
    assert once == "before\n<!-- bench:table -->\n\nnew \\1\n\n<!-- /bench:table -->\nafter \\1\n"
    assert report.splice(once, "table", "new \\1") == once
    with pytest.raises(ValueError, match="bench:plots"):
        report.splice(page, "plots", "new")


def test_what_was_not_measured_again_stays_known() -> None:
    before = {"benches": {"swap": result_of(SLOW, seconds=120), "bulk": result_of(SLOW)}}
    later = {"measuredAt": "2026-01-03T00:00+00:00", "commit": ""}
    document = runner.renew(before, {"bulk": result_of(FAST)}, MACHINE, later)
    assert list(document["benches"]) == ["bulk", "swap"]
    assert report.figures_of(document["benches"]["bulk"]) == [FAST]
    assert document["minutes"] == 3.0
    assert "in 2 runs, which each part below names" in report.describe_machine(document)
    assert report.make_part("swap", document["benches"]["swap"]).endswith(
        "on 2026-01-02, with commit abc1234. Others took 13% of the processor time."
    )
    quiet = document["benches"]["bulk"] | {"stolen": None}
    assert report.make_part("bulk", quiet).endswith("on 2026-01-03.")


def test_the_share_of_others_is_the_last_of_eight_kinds(tmp_path: Path) -> None:
    for name, line in {"before": "cpu  1 1 1 1 1 1 1 10 5 5", "after": "cpu  2 2 2 2 2 2 2 13 9 9"}.items():
        (tmp_path / name).write_text(f"{line}\ncpu0 9 9\n")
    before, after = (read_processor_time(tmp_path / name) for name in ("before", "after"))
    assert stolen_share(before, after) == 0.3
    assert stolen_share(before, before) is None
    assert stolen_share(read_processor_time(tmp_path / "absent"), []) is None


def test_what_another_measurement_makes_in_passing_is_not_started_as_well() -> None:
    together = {bench.name: passing for bench, passing in runner.plan(["bulk", "swap", "backfill"]).items()}
    assert together == {"bulk": ["backfill"], "swap": []}
    bulk = next(iter(runner.plan(["bulk", "backfill"])))
    assert bulk.command(is_quick=True, passing=["backfill"])[-1] == "--backfill"
    assert [bench.name for bench in runner.plan(["backfill"])] == ["backfill"]


def test_only_what_has_rounds_is_told_how_many_minutes_are_left() -> None:
    commands = {bench.name: bench.command(is_quick=False, minutes_left=-1) for bench in runner.BENCHES}
    told = [name for name, command in commands.items() if any("--minutes=" in part for part in command)]
    assert told == ["swap"]
    assert runner.BENCHES[-1].name == "swap"
    assert commands["swap"][-1] == "--minutes=0.0"


def test_steps_are_made_round_by_round() -> None:
    assert list(order_steps({"spare": 1, "cold": 3, "bare": 2})) == ["spare", "cold", "bare", "cold", "bare", "cold"]
    assert list(order_steps({"spare": 0, "cold": 1, "bare": 1})) == ["cold", "bare"]


def test_the_first_step_of_a_kind_is_made_however_late_and_another_only_if_it_ends_in_time() -> None:
    now = [0.0]
    clock = Clock(100 + DOWN_SECONDS, read=lambda: now[0])
    assert clock.allows("cold")
    with clock.timing("cold"):
        now[0] += 50
    assert clock.allows("cold")
    now[0] += 1
    assert not clock.allows("cold")
    assert clock.allows("bare")
    now[0] += 1000
    assert clock.allows("bare")


def test_the_page_has_a_place_for_every_measurement() -> None:
    found = {bench.name: result_of(FAST) for bench in runner.BENCHES}
    document = runner.renew({}, found, MACHINE, RUN)
    filled = report.fill_page(runner.PAGE.read_text(), document)
    assert filled.count("2 cores, 24 GiB") == 1
    assert all(f"images/{report.image_name(name)}" in filled for name in found)


def test_the_page_shows_what_was_measured_last() -> None:
    document = runner.read_document(runner.DOCUMENT)
    page = runner.PAGE.read_text()
    assert report.fill_page(page, document) == page
    for name, bench in document["benches"].items():
        image = runner.PAGE.parent / report.IMAGES / report.image_name(name)
        assert image.read_text() == report.draw_plot(report.figures_of(bench))
