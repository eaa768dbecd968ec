"""The streaming job of one generation: keeps users, accounts, rejects and joined of two topics until it is replaced.

Exit codes: 0 retired, 75 replaced by a newer attempt, 143 stopped after its batch, anything else a failure.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from switchyard.layout import JOIN_TYPES
from switchyard.policies import Target
from switchyard.stream.driver import run_driver
from switchyard.wording import start_logging


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
    given = parse_arguments(arguments)
    target = Target(given.users_topic, given.accounts_topic, given.join_type)
    return run_driver(given.generation, given.kafka_properties, target, given.start)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
