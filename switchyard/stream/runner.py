"""The foreachBatch of a generation: `_run` has what happens in one micro-batch, from top to bottom."""

from __future__ import annotations

import logging
import threading
import time

from pyspark.sql import DataFrame

from switchyard.deadline import Deadline
from switchyard.errors import FencedError, LostRaceError, SwitchyardError, UnwritableError
from switchyard.layout import BIG_TABLES, Layout
from switchyard.offsets import Offsets, count_records
from switchyard.settings import Settings
from switchyard.spec import GenerationSpec
from switchyard.stream.bulk import commit_bulk
from switchyard.stream.compaction import sort_key
from switchyard.stream.failures import explain_failure
from switchyard.stream.offset_log import read_batch_end
from switchyard.stream.progress_report import BatchPosition, ProgressReport
from switchyard.stream.small_batch import collect_if_it_fits
from switchyard.tables.forgotten import Marks
from switchyard.tables.logs import write_log
from switchyard.tables.merging import FAN_IN, merge_small
from switchyard.tables.sink import BatchSink, Counts

LOG_SECONDS = 10.0
MOST_MERGED_BYTES = 4 * 2**20
"""To revise a row is to write its file again, so what a driver merges stays small. Maintenance makes larger files."""
log = logging.getLogger("switchyard.driver")


def most_merged_bytes(settings: Settings) -> int:
    """Return the size of the largest files that a driver merges small ones into."""
    return min(settings.keeping.file_bytes, MOST_MERGED_BYTES)


class BatchRunner:
    """What Spark calls for each micro-batch. The main thread takes `busy` to act between two of them."""

    def __init__(self, settings: Settings, spec: GenerationSpec, attempt: int) -> None:
        self.spec = spec
        self.layout: Layout = settings.layout
        self.sink = BatchSink(settings.layout, spec, attempt)
        self.progress = ProgressReport(settings.layout, spec, attempt, self.sink.versions())
        self.busy = threading.Lock()
        self.stopping = threading.Event()
        self.is_pending = False
        """Whether the generation waits for its flip: each batch then waits until the main thread has seen the last"""
        self.batch_seen = threading.Event()
        self.batch_seen.set()
        self.is_awaited = False
        """Whether a swap waits for records that this driver has still to read, also when the broker tells no lag"""
        self.first_batch: tuple[Offsets, Marks] | None = None
        """Where the first batch ends and which marks it applies, as soon as that is known"""
        self.fenced: FencedError | None = None
        self.failure: str | None = None
        self._forgetting: threading.Thread | None = None
        self._next_log_line = Deadline(0)
        self._small_batch_records = settings.small_batch_records
        self._most_rows = settings.most_batch_rows
        self._merged_bytes = most_merged_bytes(settings)

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        # A batch that Spark begins while the query is being stopped must give way, or both would wait for ever.
        while not self.batch_seen.wait(0.1) or not self.busy.acquire(timeout=0.1):
            self._give_way()
        try:
            self._give_way()
            self._run(rows, batch_id)
            if self.is_pending:
                self.batch_seen.clear()
        except FencedError as error:
            self.fenced = error
            raise
        except SwitchyardError:
            raise
        except Exception as error:
            # Spark writes what is raised here into its log, with the text of the error.
            log.error("batch %s failed", batch_id, exc_info=error)
            self.failure = f"batch {batch_id} failed: {explain_failure(error)}"
            raise SwitchyardError(self.failure) from None
        finally:
            self.busy.release()

    def _give_way(self) -> None:
        if self.stopping.is_set():
            raise SwitchyardError("the driver is stopping; this batch is for the next attempt")

    def _run(self, rows: DataFrame, batch_id: int) -> None:
        began = time.monotonic()
        start, end = self._bounds(batch_id)
        records = count_records(start, end)
        self.sink.check_fence()
        if not self.sink.has_begun(batch_id):
            # A replay applies the marks that its first run has carried out.
            self._carry_out_marks()
        if records and batch_id == 0:
            self.first_batch = (end, self.sink.marks())
        counts = self._commit(rows, batch_id, records)
        seconds = time.monotonic() - began
        self.progress.report_batch(BatchPosition(batch_id, end, self.sink.versions()), start, counts, seconds)
        if batch_id % FAN_IN == 0:
            self._merge_small_files()
        if self._next_log_line.restart_if_passed(LOG_SECONDS):
            log.info("batch %s: %s records in %.1f s", batch_id, counts.input_rows, seconds)

    def _bounds(self, batch_id: int) -> tuple[Offsets, Offsets]:
        checkpoint = self.layout.checkpoint(self.spec.generation)
        topics = (self.spec.usersTopic, self.spec.accountsTopic)
        end = read_batch_end(checkpoint, batch_id, topics)
        return read_batch_end(checkpoint, batch_id - 1, topics) if batch_id else self.spec.startOffsets, end

    def _commit(self, rows: DataFrame, batch_id: int, records: int) -> Counts:
        # A small batch goes through the driver: a Spark job for each table would take longer than the batch.
        table = collect_if_it_fits(rows) if records <= self._small_batch_records else None
        if table is not None:
            return self.sink.commit_arrow(batch_id, table)
        return commit_bulk(self.sink, batch_id, rows, self._most_rows)

    def _merge_small_files(self) -> None:
        """Merge after the batch is visible, so no row waits for it. After a lost race, the next merge does more."""
        generation, progress = self.spec.generation, self.progress.table
        try:
            for name in BIG_TABLES:
                table, key = self.sink.writers[name].refresh(), sort_key(name, self.spec.joinType)
                merge_small(self.layout, table, name, generation, key, self._merged_bytes)
            progress.update_incremental()
            merge_small(self.layout, progress, "progress", generation, ["at"], self._merged_bytes)
        except (LostRaceError, UnwritableError) as error:
            log.warning("small files stay as they are for now: %s", error)

    def check_tables_when_idle(self) -> None:
        """Notice a newer attempt, or a person to forget, while no batch runs that would notice it."""
        if self.busy.acquire(blocking=False):
            try:
                self.sink.check_fence()
                is_behind = self.sink.has_new_marks()
            finally:
                self.busy.release()
            if is_behind:
                self.forget_soon()

    def forget_soon(self) -> None:
        """Carry out new marks while the topics are quiet. It may take long, so it does not hold up the main thread."""
        if self._forgetting is None or not self._forgetting.is_alive():
            self._forgetting = threading.Thread(target=self._forget_in_thread, daemon=True)
            self._forgetting.start()

    def _forget_in_thread(self) -> None:
        with self.busy:
            try:
                if not self.stopping.is_set():
                    self._forget_between_batches()
            except FencedError as error:
                self.fenced = error
            except Exception as error:
                log.error("forgetting failed", exc_info=error)
                self.failure = f"forgetting failed: {explain_failure(error)}"

    def _forget_between_batches(self) -> None:
        position = self.progress.position
        # A batch that was left half done is replayed first.
        is_half_done = self.sink.has_begun(position.batch_id + 1 if position else 0)
        if not is_half_done and self._carry_out_marks():
            self.progress.change_versions(self.sink.versions())

    def _carry_out_marks(self) -> bool:
        """Remove the rows of people to forget; return whether there were new marks."""
        lost = self.sink.carry_out_marks()
        if lost is not None:
            rows = ", ".join(f"{count} of {name}" for name, count in lost.items())
            write_log(self.layout, f"forgotten: {rows}", generation=self.spec.generation)
        return lost is not None
