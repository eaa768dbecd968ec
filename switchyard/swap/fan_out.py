"""Count how many pairs a join makes of each record: of all records so far, and of the last ones. Pure.

Where few userIds have many events, each new event meets more of the other side, so rows grow with the square of the
events. These numbers show it long before the disk is full.
"""

from __future__ import annotations

from switchyard.tables.progress import Progress

HALF_LIFE_RECORDS = 10_000
"""In the average of the last records, the weight of a record halves each time so many more have come."""
LEAST_PAIRS = 10.0
GROWTH = 1.5
"""With a fixed set of people, the last events make twice as many pairs as all events did on average."""


class FanOut:
    """Counts the pairs of a generation, beginning with the records and the average of its last report."""

    def __init__(self, records: int = 0, average: float | None = 0.0) -> None:
        self._records = records
        self._pairs = None if average is None else average * records
        self._last_records, self._last_pairs = 0.0, 0.0

    def add(self, records: int, pairs: int) -> None:
        kept = 0.5 ** (records / HALF_LIFE_RECORDS)
        self._last_records = self._last_records * kept + records
        self._last_pairs = self._last_pairs * kept + pairs
        self._records += records
        if self._pairs is not None:
            self._pairs += pairs

    @property
    def average(self) -> float | None:
        """Pairs for each record so far; None if an earlier version of Switchyard has not counted them."""
        if self._pairs is None:
            return None
        return self._pairs / self._records if self._records else 0.0

    @property
    def recent(self) -> float | None:
        return self._last_pairs / self._last_records if self._last_records else None


def warn_of_growth(average: float | None, recent: float | None) -> str | None:
    """Return a warning if an event makes many pairs, and more than before; None otherwise, or if it is not known."""
    if average is None or recent is None or recent < LEAST_PAIRS or recent <= GROWTH * average:
        return None
    return (
        f"each new event makes {recent:.0f} pairs, while all so far made {average:.0f} on average, and it grows: the "
        "same userIds come again and again; set SWITCHYARD_STATE_RETENTION, or swap to topics with fewer events of each"
    )


def show_fan_out(progress: Progress | None) -> float | None:
    """Return the pairs for each of the last events, or of all events if the driver has just started."""
    known = [progress.recentRowsPerEvent, progress.rowsPerEvent] if progress else []
    return next((round(number, 2) for number in known if number is not None), None)
