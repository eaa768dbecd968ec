"""Audit a generation (the active one by default) at the versions of its newest progress row.

Print one line of JSON, write it into the table audits, and exit 1 on any difference.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from dataclasses import asdict
from pathlib import Path

from switchyard.errors import SwitchyardError
from switchyard.settings import load_settings
from switchyard.stream.audit import audit_at_newest, record_audit
from switchyard.stream.failures import explain_failure
from switchyard.stream.session import start_session
from switchyard.wording import start_logging

log = logging.getLogger("switchyard.audit")


def main(arguments: list[str]) -> int:
    start_logging()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--generation", type=int, default=0, help="which generation; 0, the default, is the active one")
    parser.add_argument("--output", type=Path, help="also write the result, as JSON, into this file")
    options = parser.parse_args(arguments)
    try:
        settings = load_settings()
        audit = audit_at_newest(
            lambda: start_session(settings, "switchyard audit"), settings, options.generation or None
        )
    except SwitchyardError as error:
        log.error("%s", error)
        return error.exit_code
    except Exception as error:
        log.error("%s", explain_failure(error, details=""), exc_info=error)
        return 1
    record_audit(settings.layout, audit)
    text = json.dumps(asdict(audit) | {"clean": audit.is_clean})
    if options.output:
        options.output.write_text(text)
    sys.stdout.write(text + "\n")
    return 0 if audit.is_clean else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
