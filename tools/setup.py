"""Make this clone ready to run: `python3 tools/setup.py [--dev]`. Quick when there is nothing to do.

Only the standard library, and no syntax that an old Python 3 cannot read: it must live to say that it is old.
"""

import os
import sys

OLDEST_PYTHON = (3, 11)


def main() -> int:
    if sys.version_info < OLDEST_PYTHON:
        found = "%d.%d" % sys.version_info[:2]
        sys.stderr.write("set-up: Python 3.11 or newer is needed and this is %s: " % found)
        sys.stderr.write("run it again with PYTHON=python3.11 (or newer) after make.\n")
        return 1
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from tools.environment import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
