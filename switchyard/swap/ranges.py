"""Turn the range of history that a backfill reads into offsets, from its edges as people write them. Pure.

An edge is `earliest`, `latest`, an ISO timestamp, or offsets as JSON, `{"topic": {"0": 10}}`. A range of time is a
range of offsets too: each partition is read from its first record at or after the one moment to its first record at or
after the other. Partitions that offsets leave out are read from their first record, or to their end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from switchyard.errors import InputError
from switchyard.kafka.input_checks import parse_moment
from switchyard.offsets import Offsets
from switchyard.policies import Target
from switchyard.wording import shorten

TopicBounds = Mapping[str, tuple[Mapping[int, int], Mapping[int, int]]]
"""topic → the first and the next offset of every partition"""

NAMED = {"from": "earliest", "to": "latest"}
MOST_CHARACTERS = 20_000


@dataclass(frozen=True)
class Edge:
    """One end of the range. Without a moment and without offsets it is the end of what Kafka holds."""

    text: str
    moment: datetime | None = None
    offsets: Offsets | None = None


def parse_edge(side: str, text: str | None) -> Edge:
    """Read the edge `from` or `to` (`side`); an empty one means all that Kafka holds."""
    given = (text or "").strip()
    if not given or given.lower() == NAMED[side]:
        return Edge(NAMED[side])
    if len(given) > MOST_CHARACTERS:
        raise InputError(f"{side} has {len(given)} characters; at most {MOST_CHARACTERS} are allowed")
    if given.startswith("{"):
        return Edge(given, offsets=_parse_offsets(side, given))
    try:
        return Edge(given, moment=parse_moment(given))
    except InputError:
        raise InputError(
            f"{side} {shorten(given)!r} is none of {NAMED[side]}, an ISO timestamp from 1970 on like "
            '2026-01-31T12:00:00Z, and offsets like {"topic": {"0": 10}}'
        ) from None


def _parse_offsets(side: str, text: str) -> Offsets:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f'{side} is not JSON; write offsets like {{"topic": {{"0": 10}}}}') from None
    found: Offsets = {}
    for topic, partitions in parsed.items():
        if not isinstance(partitions, dict) or not partitions:
            raise InputError(f'{side} must name the partitions of {shorten(topic)}, like {{"0": 10}}')
        for partition, offset in partitions.items():
            if not re.fullmatch(r"\d{1,9}", partition, re.ASCII):
                raise InputError(f"{side}: {shorten(partition)!r} is no partition of {shorten(topic)}; use its number")
            if type(offset) is not int or not 0 <= offset < 2**63:
                raise InputError(
                    f"{side}: the offset of partition {partition} of {shorten(topic)} must be a whole number from 0 on"
                )
            found.setdefault(topic, {})[int(partition)] = offset
    if not found:
        raise InputError(f'{side} names no topic; write offsets like {{"topic": {{"0": 10}}}}')
    return found


def check_order(start: Edge, end: Edge) -> None:
    if start.moment and end.moment and start.moment >= end.moment:
        raise InputError(f"from {start.text} is not before to {end.text}; give an earlier from or a later to")


def resolve_range(
    target: Target, start: Edge, end: Edge, bounds: TopicBounds, at_moment: Mapping[str, Offsets]
) -> tuple[Offsets, Offsets]:
    """Return the offsets of both edges. `at_moment` has the offsets at the moments of `from` and `to`."""
    _check_names(target, start, "from", bounds)
    _check_names(target, end, "to", bounds)
    starts, ends = {}, {}
    for topic, (lows, highs) in bounds.items():
        starts[topic] = _place(start, topic, lows, at_moment.get("from"))
        ends[topic] = _place(end, topic, highs, at_moment.get("to"))
    check_held(starts, bounds)
    for topic, (_, highs) in bounds.items():
        for partition, high in highs.items():
            first, last = starts[topic][partition], ends[topic][partition]
            place = f"partition {partition} of {topic}"
            if last > high:
                raise InputError(f"to: {place} ends at offset {high}, and {last} was asked for; end there or wait")
            if first > last:
                raise InputError(f"the range of {place} begins at offset {first}, after its end {last}; turn it round")
    return starts, ends


def _place(edge: Edge, topic: str, usual: Mapping[int, int], at_moment: Offsets | None) -> dict[int, int]:
    if edge.moment is not None and at_moment is not None:
        return dict(at_moment[topic])
    return dict(usual) | (edge.offsets or {}).get(topic, {})


def _check_names(target: Target, edge: Edge, side: str, bounds: TopicBounds) -> None:
    for topic, partitions in (edge.offsets or {}).items():
        if topic not in bounds:
            raise InputError(
                f"{side} names the topic {shorten(topic)}, but {target.usersTopic} and "
                f"{target.accountsTopic} are joined; name one of these"
            )
        for partition in partitions:
            if partition not in bounds[topic][0]:
                raise InputError(
                    f"{side}: {topic} has no partition {partition}; it has {len(bounds[topic][0])}, beginning with 0"
                )


def check_held(starts: Offsets, bounds: TopicBounds) -> None:
    """Refuse a range whose beginning the retention of a topic has deleted."""
    for topic, partitions in starts.items():
        for partition, offset in partitions.items():
            first = bounds[topic][0].get(partition, 0)
            if offset < first:
                raise InputError(
                    f"Kafka no longer holds offset {offset} of partition {partition} of {topic}, its first one is "
                    f"{first}; begin there, or raise the retention of the topic before you need it"
                )
