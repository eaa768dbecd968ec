"""Make the class archive of the driver: run a generation until it is active, then let its JVM write its classes.

Set-up runs this module.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from switchyard.deadline import Deadline
from switchyard.drivers import class_archive, jars, processes
from switchyard.drivers.java import find_java
from switchyard.drivers.jobs import submit_command
from switchyard.drivers.submission import JAVA_OPTIONS, spark_conf, submit_arguments, submit_environment
from switchyard.errors import SwitchyardError
from switchyard.kafka.client_settings import write_properties
from switchyard.kafka.demo import DemoProducer
from switchyard.kafka.topics import ensure_topics
from switchyard.local import loopback
from switchyard.local.broker import Broker
from switchyard.policies import Target
from switchyard.settings import Settings
from switchyard.tables.status import read_status

MOST_SECONDS = 240.0
RECORDS = 200


def ensure_archive() -> None:
    if class_archive.is_current():
        return
    with tempfile.TemporaryDirectory(prefix="archive-", dir=jars.cache_dir(), ignore_cleanup_errors=True) as name:
        folder = Path(name)
        made = folder / "driver.jsa"
        port = loopback.pick_free_port()
        settings = Settings(root=str(folder / "root"), home=folder / "home", kafka_port=port, kafka_bootstrap=None)
        broker = Broker(folder / "broker", port)
        broker.start()
        try:
            broker.wait_until_ready()
            kafka, topics = {"bootstrap.servers": settings.bootstrap}, (settings.users_topic, settings.accounts_topic)
            ensure_topics(kafka, topics, 1)
            DemoProducer(kafka, *topics).send_fast(RECORDS)
            _run_driver(settings, folder / "kafka.properties", made)
        finally:
            broker.stop()
        class_archive.put_in_place(made)


def _run_driver(settings: Settings, properties: Path, archive: Path) -> None:
    """Run a driver like any other, except that its JVM writes the archive when it ends."""
    write_properties(properties, {"bootstrap.servers": settings.bootstrap})
    options = f"{settings.driver_java_options} -XX:ArchiveClassesAtExit={archive}"
    conf = spark_conf("local[2]", jars.spark_jars()) | {JAVA_OPTIONS: options}
    target = Target(settings.users_topic, settings.accounts_topic, "left")
    arguments = submit_arguments(1, target, "earliest", properties)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SWITCHYARD_")}
    environment |= submit_environment(environment, Path(sys.executable), find_java().path)
    environment |= {"SWITCHYARD_ROOT": settings.root, "SWITCHYARD_HOME": str(settings.home)}
    command = submit_command(settings, "stream_generation.py", arguments, conf)
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        _wait_until_active(settings, process)
        os.kill(int(settings.workspace.driver_pid(1).read_text()), signal.SIGTERM)
        process.wait(MOST_SECONDS)
    except subprocess.TimeoutExpired:
        raise SwitchyardError("the driver that was to write its class archive did not end.") from None
    finally:
        processes.end_sessions([process.pid], 5)
    if not archive.exists():
        raise SwitchyardError("the JVM of the driver wrote no class archive.")


def _wait_until_active(settings: Settings, process: subprocess.Popen[bytes]) -> None:
    for _ in Deadline(MOST_SECONDS).polls(0.5):
        if read_status(settings.layout) is not None:
            return
        if process.poll() is not None:
            raise SwitchyardError(f"the driver ended with exit code {process.returncode} before it was active.")
    raise SwitchyardError(f"the driver was not active within {MOST_SECONDS:g} s.")


if __name__ == "__main__":
    try:
        ensure_archive()
    except (SwitchyardError, OSError) as error:
        sys.exit(f"switchyard: {error}")
