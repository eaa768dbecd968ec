"""The streaming job of one generation: keeps users, accounts, rejects and joined of two topics until it is replaced.

Exit codes: 0 retired, 75 replaced by a newer attempt, 143 stopped after its batch, anything else a failure.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from switchyard.errors import SwitchyardError
from switchyard.generations import spec_for_driver
from switchyard.kafka.client import read_properties
from switchyard.kafka.topics import TopicReader
from switchyard.layout import JOIN_TYPES
from switchyard.privacy import start_logging
from switchyard.settings import load_settings
from switchyard.stream.lifecycle import run_generation
from switchyard.swaps import Target

log = logging.getLogger("switchyard.driver")


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--generation", type=int, required=True)
    parser.add_argument("--users-topic", required=True)
    parser.add_argument("--accounts-topic", required=True)
    parser.add_argument("--join-type", choices=JOIN_TYPES, required=True)
    parser.add_argument("--start", default="latest", help="latest, earliest, resume or an ISO timestamp")
    parser.add_argument("--kafka-properties", type=Path, required=True, help="file with the Kafka client settings")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    start_logging()
    options = parse_arguments(arguments)
    try:
        settings = load_settings()
        kafka = read_properties(options.kafka_properties)
        target = Target(options.users_topic, options.accounts_topic, options.join_type)
        with TopicReader(kafka) as reader:
            spec = spec_for_driver(settings, reader, options.generation, target, options.start)
        return int(run_generation(settings, spec, kafka).value)
    except SwitchyardError as error:
        log.error("%s", error)
        return error.exit_code
    except Exception as error:
        log.error("the driver failed", exc_info=error)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
