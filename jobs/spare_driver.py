"""A driver without a generation: it warms up, waits in its folder for the arguments of one, and becomes its driver.

Exit codes: 143 when it was not needed, otherwise those of stream_generation.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from switchyard.drivers.hand_off import HandOff
from switchyard.kafka.client_settings import read_properties
from switchyard.stream.failures import explain_failure
from switchyard.stream.spare import serve
from switchyard.wording import start_logging


def take_properties(path: Path) -> dict[str, str]:
    """A spare may wait for days: its secrets are in memory only."""
    properties = read_properties(path)
    path.unlink(missing_ok=True)
    return properties


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spare", type=Path, required=True, help="folder in which it is handed over")
    parser.add_argument("--kafka-properties", type=Path, help="file with the Kafka client settings; read and removed")
    given = parser.parse_args(arguments)
    start_logging()
    try:
        return serve(HandOff(given.spare), take_properties(given.kafka_properties) if given.kafka_properties else {})
    except Exception as error:
        logging.getLogger("switchyard.driver").error(
            "the spare driver failed: %s", explain_failure(error, details=""), exc_info=error
        )
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
