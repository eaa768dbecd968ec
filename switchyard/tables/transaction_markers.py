"""Follow the transaction markers of an open table, by what each new version adds to them.

For each marker, delta-rs reads every log entry since the last checkpoint. On a disk that is cheap. In a bucket each
entry is a request, and a writer asks several times in each batch.
"""

from __future__ import annotations

import threading
from collections.abc import Collection

from deltalake import DeltaTable

from switchyard.tables.commits import MOST_COMMITS, read_markers
from switchyard.tables.folders import Folder


class Markers:
    """The markers of some application ids, at the version at which the table is open."""

    def __init__(self, table: DeltaTable, folder: Folder, app_ids: Collection[str]) -> None:
        self._table, self._folder, self._app_ids = table, folder, app_ids
        self._version = -1
        self._known: dict[str, int] = {}
        # Two threads of a driver ask: its batches and its watch loop.
        self._lock = threading.Lock()

    def get(self, app_id: str) -> int | None:
        with self._lock:
            self._advance(int(self._table.version()))
            return self._known.get(app_id)

    def _advance(self, version: int) -> None:
        if version == self._version:
            return
        if self._version < 0 or not 0 < version - self._version <= MOST_COMMITS:
            self._load(version)
            return
        for number in range(self._version + 1, version + 1):
            found = read_markers(self._folder, number)
            if found is None:
                # The entry was deleted: the table was opened from a later checkpoint of the log.
                self._load(version)
                return
            self._known |= {app_id: number for app_id, number in found.items() if app_id in self._app_ids}
        self._version = version

    def _load(self, version: int) -> None:
        found = {app_id: self._table.transaction_version(app_id) for app_id in self._app_ids}
        self._known = {app_id: int(number) for app_id, number in found.items() if number is not None}
        self._version = version
