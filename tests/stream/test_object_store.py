"""A generation whose tables and checkpoint are on an object store: a real S3 server, real drivers, the real audit."""

from __future__ import annotations

import json
from pathlib import Path

from switchyard.drivers.jobs import run_job
from switchyard.layout import Layout
from switchyard.settings import Settings
from switchyard.tables.folders import Folder
from switchyard.tables.progress import newest_progress
from tests.events import draw_events
from tests.object_stores import LOGIN
from tests.stream.driver import KILLED, STOPPED, running_driver
from tests.topics import Topics
from tests.waiting import eventually


def test_a_driver_that_was_killed_goes_on_and_the_audit_is_clean(
    bucket: Layout, topics: Topics, tmp_path: Path
) -> None:
    settings = Settings(root=bucket.root, home=tmp_path / "home", max_offsets_per_trigger=100, driver_memory="1g")
    events = draw_events(seed=71, count=400)
    topics.send(events[:200])
    with running_driver(settings, topics, tmp_path, join_type="natural", crash="joined:before") as driver:
        assert driver.wait() == KILLED, driver.tail()
    topics.send(events[200:])
    by_executors = {"SWITCHYARD_SMALL_BATCH_RECORDS": "100"}
    with running_driver(settings, topics, tmp_path, join_type="natural", environment=by_executors) as driver:
        eventually(lambda: driver.has_read(400))
        driver.ask_to_stop()
        assert driver.wait() == STOPPED, driver.tail()
    progress = newest_progress(bucket, 1)
    assert progress is not None
    assert progress.attempt == 2
    users = [Folder.at(bucket.table("users")).relative(info) for info in Folder.at(bucket.table("users")).list_all()]
    assert any("/bulk-2-" in path for path in users), "no batch was written by executors"
    assert any("/part-" in path and "/bulk-" not in path for path in users), "no batch was written by the driver"

    output = tmp_path / "audit.json"
    code = run_job(settings, "audit_generation.py", ["--generation=1", f"--output={output}"], tmp_path / "audit.log")
    assert code == 0, (tmp_path / "audit.log").read_text()
    audit = json.loads(output.read_text())
    assert (audit["clean"], audit["holes"], audit["rowsCompared"] > 0) == (True, 0, True)

    assert {path.name for path in settings.workspace.home.iterdir()} <= {"run", "secrets"}
    for log in tmp_path.glob("*.log"):
        assert LOGIN["AWS_SECRET_ACCESS_KEY"] not in log.read_text(errors="replace")
