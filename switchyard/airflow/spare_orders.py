"""Orders for the spare driver.

The task that has accepted a swap gives the order, before the run of the generation has started. The task `stream` of
that run adopts the driver; if there is none, it gives the order itself. A spare that fails must not harm a swap: then
a driver is submitted as without a spare.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from switchyard.airflow.spark_submit import SparkSubmit, read_submit
from switchyard.errors import InputError
from switchyard.settings import Settings

if TYPE_CHECKING:
    from switchyard.drivers.detached_process import DetachedProcess
    from switchyard.drivers.spares import Order
    from switchyard.swap.history import Request
    from switchyard.swap.reconcile import Run

log = logging.getLogger(__name__)


def find_spare(
    settings: Settings, submit: SparkSubmit, kafka: Mapping[str, str], request: Request, properties: Path
) -> DetachedProcess | None:
    """Return a spare that works for this swap already, or takes the order now."""
    from switchyard.drivers.spares import Order

    if spare := adopt(settings, request.swapId):
        return spare
    order = Order(generation=request.generation, kafkaProperties=properties, swapId=request.swapId)
    return adopt(settings, request.swapId) if _give_order(settings, submit, kafka, order) else None


def _give_order(settings: Settings, submit: SparkSubmit, kafka: Mapping[str, str], order: Order) -> bool:
    """Return whether a spare works on the order now."""
    from switchyard.drivers.spare_claim import take_spare
    from switchyard.kafka.security import TOKEN_URL

    if not settings.spare or not submit.place.is_here:
        return False
    try:
        wanted = submit.fingerprint(kafka.get(TOKEN_URL, ""))
        return take_spare(settings.workspace, order, wanted, log.warning) is not None
    except (OSError, ValueError) as error:
        log.warning("The spare driver could not be taken: %s", type(error).__name__)
        return False


def give_early(settings: Settings, kafka: Mapping[str, str], run: Run) -> bool:
    """Give the order for the generation of a run that does not exist yet, once for each swap."""
    from switchyard.drivers.spare_claim import has_offer, has_taken
    from switchyard.drivers.spares import Order
    from switchyard.kafka.client_settings import write_properties

    swap_id, generation, workspace = str(run.conf["swap_id"]), int(run.conf["generation"]), settings.workspace
    if has_taken(workspace, swap_id) or not has_offer(workspace):
        return False
    # The watcher may give two orders for one generation at once: one that fails must not remove what the other has.
    properties = workspace.kafka_properties(generation, os.getpid(), uuid4().hex)
    write_properties(properties, kafka)
    is_taken = False
    try:
        order = Order(generation=generation, kafkaProperties=properties, swapId=swap_id)
        is_taken = _give_order(settings, read_submit(settings), kafka, order)
    except InputError as error:
        log.warning("No driver can be started: %s", error)
    finally:
        # The driver reads it when it begins; the task that adopts the driver removes it.
        if not is_taken:
            properties.unlink(missing_ok=True)
    return is_taken


def find_unowned(settings: Settings) -> Run | None:
    """Return the run of a driver that no task follows, if the task that gave the order died before it started one."""
    from switchyard.drivers.spare_claim import list_unowned
    from switchyard.swap.log_messages import open_history
    from switchyard.swap.reconcile import run_of

    if not (orders := list_unowned(settings.workspace)):
        return None
    ledger = open_history(settings.layout).ledger()
    requests = filter(None, (ledger.find(order.swapId) for order in orders))
    return next((run_of(ledger, request) for request in requests), None)


def adopt(settings: Settings, swap_id: str) -> DetachedProcess | None:
    """Return the driver that works for a swap and that no task follows yet."""
    from switchyard.drivers.spare_claim import adopt_taken

    try:
        return adopt_taken(settings.workspace, swap_id)
    except (OSError, ValueError) as error:
        log.warning("The spare driver of this swap could not be adopted: %s", type(error).__name__)
        return None


def driver_pid(spare: DetachedProcess) -> int | None:
    """Return the pid of the Python process of a spare, which may have written its pid file before this task began."""
    from switchyard.drivers.hand_off import HandOff

    claim = HandOff(spare.folder).read_claim()
    return claim.pid if claim else None


def release(spare: DetachedProcess) -> None:
    """Remove the folder of a spare that has ended, and the Kafka settings that it was given."""
    from switchyard.drivers.hand_off import HandOff

    if spare.returncode is None:
        return
    hand_off = HandOff(spare.folder)
    if order := hand_off.read_order():
        order.kafkaProperties.unlink(missing_ok=True)
    hand_off.remove()
