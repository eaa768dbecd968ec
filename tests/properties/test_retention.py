"""What maintenance may take away, over random tables, logs and histories: never something that is still needed."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from switchyard.swap import flip_rules, retirement_rules
from switchyard.swap.history import LIFE, SETTLING, Entry, Event, Ledger, StatusRow
from switchyard.tables.compaction import choose_files, count_overlaps, cut_into_groups
from switchyard.tables.files import LiveFile
from switchyard.upkeep.retention import StoredFile, find_garbage, first_readable, plan_log, version_at
from tests.specs import TARGET

NOW = datetime(2026, 6, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def ago(minutes: float) -> datetime:
    return NOW - timedelta(minutes=minutes)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[StoredFile], list[tuple[datetime, set[str]]]]:
    """Files, and the versions that name them: a file is written before its commit and may be removed by a later one."""
    times = sorted(draw(st.lists(st.integers(0, 600), min_size=1, max_size=12)), reverse=True)
    stored: list[StoredFile] = []
    versions: list[tuple[datetime, set[str]]] = []
    live: set[str] = set()
    for number, minutes in enumerate(times):
        for path in draw(st.sets(st.sampled_from(sorted(live)))) if live else ():
            live = live - {path}
        path = f"generation={draw(st.integers(1, 2))}/part-{number}"
        stored.append(StoredFile(path, 1, ago(minutes + draw(st.integers(0, 59)))))
        live = live | {path}
        versions.append((ago(minutes), live))
    return stored, versions


@settings(deadline=None)
@given(tables(), st.sets(st.integers(0, 11)))
def test_no_file_goes_that_could_be_read_within_the_retention(
    table: tuple[list[StoredFile], list[tuple[datetime, set[str]]]], pinned: set[int]
) -> None:
    """A batch takes less than an hour here, which is the retention."""
    stored, versions = table
    log = [StoredFile(f"{number:020}.json", 1, at) for number, (at, _) in enumerate(versions)]
    first = version_at(log, NOW - HOUR)
    assert first is not None
    referenced = {number for number in pinned if number < len(versions)}
    needed = {first, len(versions) - 1, *referenced}
    named = {path for number in needed for path in versions[number][1]}
    gone = {file.path for file in find_garbage(stored, named, NOW, HOUR, {})}
    readable = [live for number, (_, live) in enumerate(versions) if number >= first or number in referenced]
    assert not gone & set().union(*readable)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5_000)), max_size=20), st.integers(0, 5_000))
def test_a_batch_may_take_as_long_as_it_likes(written: list[tuple[int, int]], reported: int) -> None:
    stored = [StoredFile(f"generation={g}/bulk-1-7/part-{n}", 1, ago(at)) for n, (g, at) in enumerate(written)]
    gone = set(find_garbage(stored, set(), NOW, HOUR, {1: ago(reported), 2: None}))
    for file, (generation, at) in zip(stored, written, strict=True):
        may_be_used = generation == 2 or (generation == 1 and at <= reported)
        assert (file in gone) == (at > 120 and not may_be_used)


@st.composite
def logs(draw: st.DrawFn) -> list[StoredFile]:
    """A log as it may be found: its beginning cut off at a checkpoint, some checkpoints, other files."""
    last = draw(st.integers(0, 30))
    checkpoints = draw(st.sets(st.integers(0, last)))
    begin = draw(st.sampled_from(sorted({0, *checkpoints})))
    older = draw(st.integers(0, 20))
    found = [StoredFile(f"{version:020}.json", 1, ago(last - version)) for version in range(begin, last + 1)]
    # What the log begins with was there before anybody listed it.
    found += [
        StoredFile(
            f"{version:020}.checkpoint.parquet", 1, ago(60 if version == begin else max(0, last - version - older))
        )
        for version in checkpoints
        if version >= begin
    ]
    found.append(StoredFile("_last_checkpoint", 1, ago(0)))
    return draw(st.permutations(found))


@settings(deadline=None)
@given(logs(), st.integers(0, 30), st.data())
def test_every_needed_version_can_be_opened_after_the_log_is_cut(
    log: list[StoredFile], minutes: int, data: st.DataObject
) -> None:
    last = max(int(file.path[:20]) for file in log if file.path.endswith(".json"))
    needed = data.draw(st.sets(st.integers(first_readable(log), last), min_size=1))
    plan = plan_log(log, needed, NOW, timedelta(minutes=minutes))
    left = {file.path for file in log} - {file.path for file in plan.expired}
    assert "_last_checkpoint" in left
    # Who listed the log before the retention may know none of the checkpoints that were made since.
    old = {file.path for file in log if file.at <= ago(minutes)}
    for known in (left, left & old):
        for version in {*needed, last}:
            bases = [v for v in range(version + 1) if f"{v:020}.checkpoint.parquet" in known]
            begin = max(bases) + 1 if bases else 0
            assert all(f"{v:020}.json" in left for v in range(begin, version + 1))
    usable = [v for v in range(min(needed) + 1) if f"{v:020}.checkpoint.parquet" in old]
    assert not usable or not any(int(path[:20]) < max(usable) for path in left if path[0].isdigit())


def test_drafts_of_dead_writers_go_from_the_log() -> None:
    log = [StoredFile("00000000000000000000.json", 1, ago(900)), StoredFile("_commit_ab.json.tmp", 1, ago(900))]
    assert [file.path for file in plan_log(log, {0}, NOW, HOUR).expired] == ["_commit_ab.json.tmp"]
    fresh = [log[0], replace(log[1], at=ago(1))]
    assert plan_log(fresh, {0}, NOW, HOUR).expired == []


@st.composite
def histories(draw: st.DrawFn) -> tuple[Ledger, StatusRow]:
    """Generations become active one after the other, in any order, also again; some are asked for and fail."""
    entries: list[Entry] = []
    at = ago(60 * 24 * 60)
    number, active, flipped = 0, None, 0

    def add(event: Event, swap_id: str, generation: int) -> None:
        nonlocal at
        at += timedelta(minutes=draw(st.integers(1, 6000)))
        entries.append(Entry(swap_id, event, generation, TARGET, "latest", "test", at=at))

    for number in range(1, draw(st.integers(1, 8)) + 1):
        known = sorted({entry.generation for entry in entries if entry.generation and entry.generation != active})
        generation = draw(st.sampled_from([max([0, *known, active or 0]) + 1, *known]))
        add(Event.REQUESTED, f"s{number}", generation)
        outcome = draw(st.sampled_from([Event.APPLIED, Event.APPLIED, Event.FAILED, None]))
        if outcome is None:
            break
        add(outcome, f"s{number}", generation)
        if outcome is Event.APPLIED:
            before, active, flipped = active, generation, number
            if before is not None:
                swap_id = next(e.swapId for e in reversed(entries) if e.generation == before)
                add(Event.LINGERING, swap_id, before)
                if draw(st.booleans()):
                    add(Event.RETIRED, swap_id, before)
    return Ledger.of(entries), StatusRow(active, TARGET, at, flipped, flipped)


@settings(deadline=None)
@given(histories(), st.integers(0, 70))
def test_only_generations_that_nobody_can_want_are_removed(history: tuple[Ledger, StatusRow], days: int) -> None:
    ledger, status_row = history
    keep = timedelta(days=days)
    events = [(entry.event, entry.generation, entry.swapId, entry.at) for entry in ledger.entries]
    flips = [generation for event, generation, _, _ in events if event is Event.APPLIED]
    settled = {swap_id for event, _, swap_id, _ in events if event in SETTLING}
    for generation in ledger.generations:
        if not retirement_rules.may_remove(ledger, status_row, generation, NOW, keep):
            continue
        own = [event for event in events if event[1] == generation]
        assert generation in flips
        assert generation != flips[-1]
        assert generation != [other for other in flips if other != flips[-1]][-1]
        assert {swap_id for event, _, swap_id, _ in own if event is Event.REQUESTED} <= settled
        lives = [event for event in own if event[0] in LIFE]
        assert lives[-1][0] is Event.RETIRED
        assert lives[-1][3] <= NOW - keep
        removed = Ledger.of([*ledger.entries, Entry("s", Event.RETIRED, generation, TARGET, at=NOW)])
        assert not retirement_rules.may_remove(removed, status_row, generation, NOW, keep)
        assert flip_rules.find_resumable(removed, status_row, TARGET) != generation
        assert flip_rules.previous_generation(removed, status_row) != generation


@st.composite
def live_files(draw: st.DrawFn) -> list[LiveFile]:
    spans = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1000), st.integers(0, 1000)), max_size=40))
    return [
        LiveFile(f"f{n}", draw(st.integers(1, 300)), 1, draw(st.integers(0, 99)), (0, p), (min(a, b), max(a, b)))
        for n, (p, a, b) in enumerate(spans)
    ]


@settings(deadline=None)
@given(live_files(), st.integers(0, 99), st.integers(100, 2000))
def test_small_files_are_merged_and_good_ones_left_alone(live: list[LiveFile], before: int, most: int) -> None:
    chosen = choose_files(live, 100, before)
    assert all(file.written <= before for file in chosen)
    full = [file for file in live if file.size >= 50 and file.written <= before]
    crowded = {file.path for file, count in zip(full, count_overlaps(full), strict=True) if count > 4}
    assert all(file.size < 50 or file.path in crowded for file in chosen)
    small = [file for file in live if file.size < 50 and file.written <= before]
    if len(small) > 1:
        assert {file.path for file in small} <= {file.path for file in chosen}
    assert len(chosen) != 1
    groups = cut_into_groups(chosen, most)
    assert all(len(group) > 1 for group in groups)
    assert all(sum(file.size for file in group) <= most or len(group) == 1 for group in groups)
    grouped = [file.path for group in groups for file in group]
    assert len(grouped) == len(set(grouped))
    assert set(grouped) <= {file.path for file in chosen}


def test_overlaps_are_counted_in_both_directions() -> None:
    spans = [((0, 0), (0, 9)), ((0, 1), (5, 20)), ((1, 1), (0, 4)), ((0, 0), (21, 30))]
    live = [LiveFile(str(n), 1, 1, 0, partitions, offsets) for n, (partitions, offsets) in enumerate(spans)]
    assert count_overlaps(live) == [1, 1, 0, 0]


def test_full_files_that_lie_across_each_other_are_sorted_again_but_not_the_seams_of_an_earlier_time() -> None:
    crowd = [LiveFile(f"generation=1/bulk-1-0/{n}", 99, 1, 0, (0, 1), (0, 100)) for n in range(6)]
    seam = LiveFile("generation=1/compact-a-0/x", 99, 1, 0, (0, 1), (0, 100))
    apart = LiveFile("generation=1/compact-a-0/y", 99, 1, 0, (0, 0), (200, 300))
    assert choose_files([*crowd, seam, apart], 100, 0) == crowd
    assert choose_files([*crowd[:4], seam, apart], 100, 0) == []
