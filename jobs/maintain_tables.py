"""Compact the big tables of every generation while the streams go on. Print one line of JSON."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from dataclasses import asdict
from pathlib import Path

from switchyard.errors import SwitchyardError
from switchyard.settings import load_settings
from switchyard.stream.compaction import compact_tables
from switchyard.stream.failures import explain_failure
from switchyard.stream.session import start_session
from switchyard.wording import start_logging

log = logging.getLogger("switchyard.upkeep.maintenance")


def main(arguments: list[str]) -> int:
    start_logging()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry-run", choices=("true", "false"), default="false", help="only say what would be done")
    parser.add_argument("--output", type=Path, help="also write the result, as JSON, into this file")
    options = parser.parse_args(arguments)
    try:
        settings = load_settings()
        done = compact_tables(
            lambda: start_session(settings, "switchyard maintenance"),
            settings.layout,
            settings.keeping,
            options.dry_run == "true",
        )
    except SwitchyardError as error:
        log.error("%s", error)
        return error.exit_code
    except Exception as error:
        log.error("%s", explain_failure(error, details=""), exc_info=error)
        return 1
    text = json.dumps({"tables": [asdict(compacted) for compacted in done]})
    if options.output:
        options.output.write_text(text)
    sys.stdout.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
