"""How fast the page's API is with a big joined table: pages, ticks, a flip, and what many browsers cost.

Writes a table of ROWS joined rows as a driver would, serves it with the real API over HTTP, and asks; with Chromium on
this machine also what a person sees on the page. No Airflow, no Kafka and no Spark take part: what is measured is the
reader. `--rows` makes it smaller.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import suppress
from datetime import UTC, datetime
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.rows import draw_rows, set_active
from switchyard.layout import BIG_TABLES, PROJECT, Layout
from switchyard.local import loopback
from switchyard.tables import files, store
from switchyard.tables.folders import Folder
from switchyard.tables.progress import Progress, report
from tools.browser_package import find_chromium

RESULTS = PROJECT / "bench" / "results"
FILE_ROWS = 100_000
BROWSERS = 20
TICKS = 20
PAGES = {
    "sort by a number": "sort=-balance",
    "sort by text": "sort=email",
    "last page of a sort": "sort=userId&offset=9900",
    "filter, then sort": "filter=name:contains:hopper&sort=balance",
    "quick text, nothing found": "quick=zz9",
    "quick text, two words": "quick=ada+123",
    "few rows found": "filter=balance:gt:99999.5",
}


def add_rows(layout: Layout, rows: pa.Table, generation: int = 1) -> None:
    added = files.write_file(Folder.at(layout.table("joined")), generation, rows)
    store.transact(layout, "joined", lambda _: store.Change(added=[added]))


def tell_progress(layout: Layout, generation: int = 1) -> float:
    """Make the newest versions the ones to read; returns when that was."""
    versions = [store.open_table(layout, name).version() for name in BIG_TABLES]
    report(layout, Progress(generation, 1, 1, datetime.now(UTC), 1, 1.0, 1, 0, *versions, 0, 0, None, None))
    return time.time()


def serve(root: str, port: int) -> None:
    import uvicorn

    from switchyard.settings import Settings
    from switchyard.web.access import Access, Viewer
    from switchyard.web.api import create_app

    def anybody() -> Viewer:
        return Viewer("bench", may_command=False, sees_addresses=True)

    uvicorn.run(create_app(Settings(root=root), Access(anybody, anybody)), port=port, log_level="warning")


class Server:
    def __init__(self, root: str) -> None:
        self.port = loopback.pick_free_port()
        command = [sys.executable, __file__, "--serve", root, "--port", str(self.port)]
        self.process = subprocess.Popen(command, cwd=PROJECT)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/api/v1/{path}"

    def get(self, path: str) -> tuple[Any, float]:
        began = time.perf_counter()
        with urllib.request.urlopen(self.url(path), timeout=60) as answer:
            document = json.loads(answer.read())
        return document, time.perf_counter() - began

    def wait(self) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                self.get("me")
                return
            except OSError:
                time.sleep(0.1)
        raise SystemExit("the API did not start")

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100


class Watcher(threading.Thread):
    """A browser's stream; notes when it heard of each kind of event."""

    def __init__(self, server: Server, with_rows: bool = True) -> None:
        super().__init__(daemon=True)
        self.heard: list[tuple[str, float, Any]] = []
        self._url = server.url("changes?rows=final_ui" if with_rows else "changes")

    def run(self) -> None:
        with suppress(OSError, HTTPException), urllib.request.urlopen(self._url, timeout=120) as stream:
            kind = ""
            for line in stream:
                text = line.decode().rstrip()
                if text.startswith("event: "):
                    kind = text.removeprefix("event: ")
                elif text.startswith("data: "):
                    self.heard.append((kind, time.time(), json.loads(text.removeprefix("data: "))))

    def when(self, kind: str, since: float, deadline: float = 20) -> float:
        """Return the seconds from a moment to the first event of a kind after it."""
        until = time.time() + deadline
        while time.time() < until:
            for found, at, _ in list(self.heard):
                if found == kind and at >= since:
                    return at - since
            time.sleep(0.01)
        raise SystemExit(f"no event {kind} within {deadline} s")


def percentile(values: list[float], share: float) -> float:
    return float(np.percentile(values, share))


def measure(layout: Layout, rows: int) -> dict[str, Any]:
    server = Server(layout.root)
    try:
        server.wait()
        figures: dict[str, Any] = {"rows": rows}
        _, figures["first page, s"] = server.get("tables/final_ui?limit=100")
        for label, query in PAGES.items():
            document, seconds = server.get(f"tables/final_ui?limit=100&{query}")
            figures[f"{label}, s"] = seconds
            figures[f"{label}, rows found"] = document["total"]
        figures |= measure_ticks(layout, server, rows)
        figures |= measure_screen(layout, server, rows)
        figures |= measure_browsers(layout, server, rows + TICKS * 10)
        memory = Path(f"/proc/{server.process.pid}/status").read_text()
        peak = next(line for line in memory.splitlines() if line.startswith("VmHWM"))
        return figures | {"most memory of the API, MB": int(peak.split()[1]) // 1024}
    finally:
        server.process.terminate()
        server.process.wait(20)


def measure_ticks(layout: Layout, server: Server, rows: int) -> dict[str, Any]:
    watcher = Watcher(server)
    watcher.start()
    time.sleep(1)
    delays, refreshes = [], []
    for number in range(TICKS):
        add_rows(layout, draw_rows(rows + number * 10, 10))
        delays.append(watcher.when("rows", tell_progress(layout)))
        refreshes.append(server.get("tables/final_ui?limit=100&sort=-balance")[1])
    add_rows(layout, draw_rows(0, 100), generation=2)
    tell_progress(layout, 2)
    flip = watcher.when("tables", set_active(layout, 2))
    set_active(layout, 1)
    return {
        "row in the stream after its commit, p50 s": percentile(delays, 50),
        "row in the stream after its commit, p95 s": percentile(delays, 95),
        "sorted page again after a new row, p95 s": percentile(refreshes, 95),
        "flip in the stream, s": flip,
    }


def measure_screen(layout: Layout, server: Server, rows: int) -> dict[str, Any]:
    """From a commit to the moment when the row stands in the grid, and from a flip to the line that says so."""
    chromium = find_chromium()
    if chromium is None:
        return {}
    shows = "([place, text]) => document.querySelector(place).innerText.includes(text)"
    delays = []
    with sync_playwright() as playwright:
        page = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"]).new_page()
        page.goto(server.url("").removesuffix("api/v1/"))
        page.wait_for_function(shows, arg=["#connection", "live"])
        page.wait_for_selector("#final_ui .ag-row")
        for number in range(TICKS):
            name = f"fresh-{number}"
            # Newer than every other row, which the page shows first.
            row = draw_rows(rows + (number + 1) * 20_000, 1)
            add_rows(layout, row.set_column(0, row.schema.field("userId"), pa.array([name])))
            committed = tell_progress(layout)
            page.wait_for_function(shows, arg=["#final_ui", name], timeout=20_000)
            delays.append(time.time() - committed)
            time.sleep(0.1 * (number % 10))
        flipped = set_active(layout, 2)
        page.wait_for_function(shows, arg=["#flip", "now generation 2"], timeout=20_000)
        flip = time.time() - flipped
        set_active(layout, 1)
    return {
        "row on the screen after its commit, p50 s": percentile(delays, 50),
        "row on the screen after its commit, p95 s": percentile(delays, 95),
        "flip on the screen, s": flip,
    }


def measure_browsers(layout: Layout, server: Server, rows: int, seconds: int = 20) -> dict[str, Any]:
    """Every browser follows the stream and asks for three grids a second, as the page does while rows come."""
    stop = threading.Event()

    def browse() -> None:
        while not stop.wait(1.0):
            for name in ("final_ui", "users_ui", "accounts_ui"):
                server.get(f"tables/{name}?limit=100")

    for _ in range(BROWSERS):
        Watcher(server, with_rows=False).start()
    browsers = [threading.Thread(target=browse, daemon=True) for _ in range(BROWSERS)]
    for browser in browsers:
        browser.start()
    time.sleep(2)
    began, before = time.monotonic(), server.cpu_seconds()
    for number in range(seconds):
        add_rows(layout, draw_rows(rows + number * 10, 10))
        tell_progress(layout)
        time.sleep(max(0.0, began + number + 1 - time.monotonic()))
    cores = (server.cpu_seconds() - before) / (time.monotonic() - began)
    stop.set()
    for browser in browsers:
        browser.join(30)
    return {f"cores for {BROWSERS} browsers": cores}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.port)
        return
    folder = Path(tempfile.mkdtemp(prefix="bench-page-"))
    try:
        layout = Layout(str(folder))
        for name in BIG_TABLES:
            store.create_table(layout, name)
        for first in range(0, options.rows, FILE_ROWS):
            add_rows(layout, draw_rows(first, min(FILE_ROWS, options.rows - first)))
        tell_progress(layout)
        set_active(layout, 1)
        figures = measure(layout, options.rows)
    finally:
        shutil.rmtree(folder)
    for label, value in figures.items():
        print(f"{label:48} {value:12.3f}" if isinstance(value, float) else f"{label:48} {value:12}")
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "page.json").write_text(json.dumps(figures, indent=2))
    print(f"this process used {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB")


if __name__ == "__main__":
    main()
