"""The class archive of the driver (class data sharing): with it, its JVM starts in two thirds of the time.

Only the standard library: set-up asks here whether to make one, and `local/make_class_archive.py` makes it. The JVM
checks that an archive fits its version and class path, and ignores one that does not.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from switchyard.drivers import jars
from switchyard.drivers.java import find_java
from switchyard.layout import PROJECT


def find_archive() -> Path | None:
    path = _archive()
    return path if path.exists() else None


def is_current() -> bool:
    """Return whether there is an archive for this Java, this Spark, these jars and this folder."""
    try:
        return bool(json.loads(_description().read_text()) == _describe_wanted()) and _archive().exists()
    except (OSError, ValueError):
        return False


def put_in_place(made: Path) -> None:
    _description().unlink(missing_ok=True)
    made.rename(_archive())
    _description().write_text(json.dumps(_describe_wanted()))


def _archive() -> Path:
    return jars.cache_dir() / "driver.jsa"


def _description() -> Path:
    return jars.cache_dir() / "driver.json"


def _describe_wanted() -> dict[str, str]:
    java = find_java().path
    release = java / "release"
    spark = re.search(r"^pyspark==\S+", (PROJECT / "requirements.txt").read_text(), re.M)
    return {
        "java": f"{java} {hashlib.sha256(release.read_bytes()).hexdigest() if release.exists() else ''}",
        "spark": f"{PROJECT} {spark.group() if spark else ''}",
        "jars": " ".join(str(jar) for jar in jars.spark_jars()),
    }
