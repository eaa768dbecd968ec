"""Run a driver from its number to its exit code: one that was submitted for a generation, or a spare."""

from __future__ import annotations

import logging
from pathlib import Path

from switchyard.errors import SwitchyardError
from switchyard.kafka.client_settings import read_properties
from switchyard.kafka.topics import TopicReader
from switchyard.policies import Target
from switchyard.settings import load_settings
from switchyard.stream.failures import explain_failure
from switchyard.stream.lifecycle import run_generation
from switchyard.swap.generations import require_spec, spec_for_driver

log = logging.getLogger("switchyard.driver")


def run_driver(generation: int, kafka_properties: Path, target: Target | None = None, start: str = "latest") -> int:
    """Run one attempt of a generation to its end; return its exit code.

    Its values are in the spec. A person may submit a driver for a new generation: then target and start make the spec.
    """
    try:
        settings = load_settings()
        kafka = {"bootstrap.servers": settings.bootstrap} | read_properties(kafka_properties)
        if target is None:
            spec = require_spec(settings.layout, generation)
        else:
            with TopicReader(kafka) as reader:
                spec = spec_for_driver(settings, reader, generation, target, start)
        return int(run_generation(settings, spec, kafka).value)
    except SwitchyardError as error:
        log.error("%s", error)
        return error.exit_code
    except Exception as error:
        log.error("the driver failed: %s", explain_failure(error, details=""), exc_info=error)
        return 1
