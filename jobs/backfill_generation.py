"""The batch job of a backfill: writes the snapshot that was ordered into a generation, and ends.

Exit codes: 0 finished, 75 replaced by a newer attempt, 143 stopped, anything else a failure.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from switchyard.errors import SwitchyardError
from switchyard.kafka.client_settings import read_properties
from switchyard.kafka.security import TOKEN_URL
from switchyard.settings import load_settings
from switchyard.stream.backfill import run_backfill
from switchyard.stream.failures import explain_failure
from switchyard.stream.session import start_session
from switchyard.swap.backfills import require_snapshot
from switchyard.swap.history import FINISHED
from switchyard.wording import start_logging


def main(arguments: list[str]) -> int:
    start_logging()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--generation", type=int, required=True)
    parser.add_argument("--kafka-properties", type=Path, required=True, help="file with the Kafka client settings")
    options = parser.parse_args(arguments)
    log = logging.getLogger("switchyard.backfill")
    try:
        settings = load_settings()
        spec = require_snapshot(settings, options.generation)
        kafka = read_properties(options.kafka_properties)
        name = f"switchyard backfill {options.generation}"
        outcome = run_backfill(settings, spec, kafka, lambda: start_session(settings, name, kafka.get(TOKEN_URL, "")))
    except SwitchyardError as error:
        log.error("%s", error)
        return error.exit_code
    except Exception as error:
        log.error("%s", explain_failure(error, details=""), exc_info=error)
        return 1
    is_finished = outcome.event is FINISHED
    log.log(logging.INFO if is_finished else logging.ERROR, "generation %s: %s", options.generation, outcome.detail)
    return 0 if is_finished else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
