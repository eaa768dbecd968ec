"""The spare driver: starts a session, rehearses, offers itself, and becomes the driver of the swap that claims it."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping

from pyspark.sql import SparkSession

from switchyard.deadline import Deadline
from switchyard.drivers.hand_off import HandOff, describe_place
from switchyard.drivers.spares import Offer, Order, WaitDecision, Waiting, decide_wait
from switchyard.kafka.security import TOKEN_URL
from switchyard.settings import Settings, load_settings
from switchyard.stream.attempt import End
from switchyard.stream.driver import run_driver
from switchyard.stream.pid_file import catching_stop
from switchyard.stream.rehearsal import rehearse
from switchyard.stream.session import start_session
from switchyard.stream.watch_loop import PID_FILE_SECONDS

ORDER_POLL_SECONDS = 0.05
PROOF_SECONDS = 10.0
log = logging.getLogger("switchyard.driver")


def serve(hand_off: HandOff, kafka: Mapping[str, str]) -> int:
    """Wait for one order and run its generation; return the exit code of that driver.

    The Kafka settings are for the rehearsal only, which can do without: the order brings its own.
    """
    settings, stop = load_settings(), threading.Event()

    def on_stop() -> None:
        # Before the offer nothing can be left half done.
        if hand_off.read_offer() is None and not hand_off.is_claimed:
            os._exit(End.STOPPED.value)
        stop.set()

    with catching_stop(on_stop):
        order = _prepare_and_wait(settings, hand_off, kafka, stop)
    if order is None:
        return End.STOPPED.value
    log.info("this driver was a spare; it works for generation %s now", order.generation)
    return run_driver(order.generation, order.kafkaProperties)


def _prepare_and_wait(
    settings: Settings, hand_off: HandOff, kafka: Mapping[str, str], stop: threading.Event
) -> Order | None:
    hand_off.pulse.write_text(str(os.getpid()))
    try:
        spark = start_session(settings, "switchyard spare", kafka.get(TOKEN_URL, ""))
        rehearse(spark, settings, hand_off.folder, kafka, hand_off.pulse.touch)
        # What the rehearsal has left in the heap
        spark.sparkContext._jvm.java.lang.System.gc()  # type: ignore[union-attr]
        hand_off.pulse.touch()
        fingerprint = hand_off.read_fingerprint()
        hand_off.offer(Offer(pid=os.getpid(), session=os.getsid(0), place=describe_place(), fingerprint=fingerprint))
        log.info("the spare driver is ready")
        return _poll_for_order(spark, hand_off, stop)
    finally:
        hand_off.pulse.unlink(missing_ok=True)


def _poll_for_order(spark: SparkSession, hand_off: HandOff, stop: threading.Event) -> Order | None:
    next_pulse, next_proof = Deadline(PID_FILE_SECONDS), Deadline(PROOF_SECONDS)
    while True:
        if order := hand_off.accept():
            return order
        claimed_seconds = hand_off.claimed_seconds
        is_pulse_due = next_pulse.restart_if_passed(PID_FILE_SECONDS)
        decision = decide_wait(Waiting(stop.is_set(), is_pulse_due and hand_off.is_orphaned(), claimed_seconds))
        if decision is not WaitDecision.WAIT:
            log.info("the spare driver ends: %s", decision)
            return None
        if is_pulse_due:
            hand_off.pulse.touch()
        if next_proof.has_passed and claimed_seconds is None:
            # Raises when the JVM or the executors are gone: such a spare must not be claimed.
            spark.range(1).collect()
            next_proof.restart(PROOF_SECONDS)
        time.sleep(ORDER_POLL_SECONDS)
