"""Read `audits`: what comparing the joined table with the batch join has found."""

from __future__ import annotations

from collections.abc import Iterable

from switchyard.health.checks import LastAudit
from switchyard.tables.store import Row

ASKED = ("at", "generation", "missing", "extra", "unaccounted")


def newest_audit(rows: Iterable[Row]) -> LastAudit | None:
    last = max(rows, key=lambda row: row["at"], default=None)
    if last is None:
        return None
    differences = sum(last[name] or 0 for name in ASKED[2:])
    return LastAudit(last["at"], last["generation"], differences)
