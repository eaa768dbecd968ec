"""The life of one attempt of a generation, from its claim to its exit code: `run_generation` has the steps in order.

The main thread watches and acts on the history; batches run in Spark's threads. `swap` takes all decisions, on
what the history says now, not on what this process remembers: any step may be repeated by another process.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Mapping

from switchyard.errors import AccessError, FencedError, InputError, SwitchyardError
from switchyard.kafka.client_settings import to_java
from switchyard.kafka.security import TOKEN_URL
from switchyard.kafka.topics import TopicReader
from switchyard.object_store import to_hadoop
from switchyard.settings import Settings
from switchyard.spec import GenerationSpec
from switchyard.stream.attempt import Attempt, End, claim, find_request
from switchyard.stream.attempt_end import ending_early, record_failure, remove_leftovers
from switchyard.stream.continuity import check_continuity
from switchyard.stream.failures import explain_failure, write_when_disk_has_room
from switchyard.stream.pid_file import stoppable
from switchyard.stream.query import generation_rows
from switchyard.stream.runner import BatchRunner
from switchyard.stream.running_query import RunningQuery
from switchyard.stream.session import start_session
from switchyard.stream.watch_loop import WatchLoop
from switchyard.swap import retirement_rules
from switchyard.swap.generations import require_access
from switchyard.swap.log_messages import open_history

log = logging.getLogger("switchyard.driver")


def run_generation(settings: Settings, spec: GenerationSpec, kafka: Mapping[str, str]) -> End:
    history, stop = open_history(settings.layout), threading.Event()
    request = find_request(settings, history, spec)
    if retirement_rules.must_stop(history.ledger(), request):
        log.info("generation %s is over; there is nothing to do", spec.generation)
        return End.RETIRED
    try:
        attempt = claim(settings, history, spec, request)
        with TopicReader(kafka) as reader:
            check_continuity(settings.layout, spec, reader)
        with (
            stoppable(settings, spec.generation, stop.set),
            contextlib.closing(_start_query(attempt, kafka)) as running,
            TopicReader(kafka) as reader,
        ):
            # Catches up, passes the data gate, flips; later it lingers, and retires.
            return WatchLoop(attempt, running, reader, stop).until_end()
    except FencedError as error:
        log.warning("fenced out: %s", error)
        return End.FENCED
    except Exception as error:
        reason = explain_failure(error)
        write_when_disk_has_room(reason, lambda: record_failure(settings, history, request, reason), stop)
        raise
    finally:
        remove_leftovers(settings.layout, history, spec.generation)


def _start_query(attempt: Attempt, kafka: Mapping[str, str]) -> RunningQuery:
    settings, spec = attempt.settings, attempt.spec
    with ending_early(attempt):
        java_kafka = to_java(kafka)
        _check_access(spec, kafka)
        runner = BatchRunner(settings, spec, attempt.number)
        spark = start_session(settings, f"switchyard generation {spec.generation}", kafka.get(TOKEN_URL, ""))
        rows = generation_rows(spark, spec, java_kafka, settings.max_offsets_per_trigger)
    runner.is_pending = True
    query = (
        rows.writeStream.queryName(f"generation-{spec.generation}")
        .foreachBatch(runner)
        .option("checkpointLocation", to_hadoop(settings.layout.checkpoint(spec.generation)))
        .trigger(processingTime=f"{settings.trigger_seconds} seconds")
        .start()
    )
    runner.progress.reported_at = time.monotonic()
    return RunningQuery(spark, query, runner, java_kafka)


def _check_access(spec: GenerationSpec, kafka: Mapping[str, str]) -> None:
    """Fail at once when the broker refuses this client: Spark would go on trying. For one that is down, Spark waits."""
    try:
        with TopicReader(kafka) as reader:
            require_access(reader, spec.target)
    except (AccessError, InputError):
        raise
    except SwitchyardError as error:
        log.warning("%s", error)
