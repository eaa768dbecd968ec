"""The API as a server gives it, over real Delta tables: what it answers, to whom, and what it refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI, Header, HTTPException
from hypothesis import HealthCheck, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance
from starlette.testclient import TestClient

from switchyard.cli.main import main
from switchyard.health.metrics import EXPORTED
from switchyard.health.read_model import ReadModel
from switchyard.layout import BIG_TABLES, Layout
from switchyard.settings import Settings
from switchyard.swap.generations import keep_spec
from switchyard.swap.history_store import HistoryStore
from switchyard.tables import store
from switchyard.tables.changes import Changes, format_position, parse_position
from switchyard.tables.live import LiveTables
from switchyard.tables.long_text import MOST_CHARACTERS
from switchyard.tables.progress import Progress, report
from switchyard.tables.queries import WINDOW_ROWS
from switchyard.web.access import Access, Viewer
from switchyard.web.api import create_app
from switchyard.web.documents import EVENTS
from switchyard.web.streaming import stream_changes
from tests.exposition import parse
from tests.specs import make_spec
from tests.unit.tables.test_reader import START, add_joined, joined_rows, reader, report_progress, set_status

__all__ = ["reader"]

VIEWERS = {
    "admin": Viewer("admin", may_command=True, sees_addresses=True),
    "viewer": Viewer("viewer"),
}
NOBODY_LISTENS = 1


def read(authorization: str | None = Header(None)) -> Viewer:
    """Logins for these tests: the token is the name of the viewer."""
    if authorization is None:
        raise HTTPException(401, "nobody is logged in")
    viewer = VIEWERS.get(authorization.removeprefix("Bearer "))
    if viewer is None:
        raise HTTPException(403, "not for you")
    return viewer


def command(authorization: str | None = Header(None)) -> Viewer:
    viewer = read(authorization)
    if not viewer.may_command:
        raise HTTPException(403, "not for you")
    return viewer


@pytest.fixture
def app(reader: Any, layout: Layout, tmp_path: Path) -> FastAPI:
    static = tmp_path / "static"
    static.mkdir()
    (static / "index.html").write_text("<title>Switchyard</title>")
    (static / "page.js").write_text("1")
    settings = Settings(root=layout.root, kafka_port=NOBODY_LISTENS)
    return create_app(settings, Access(read, command), static)


@pytest.fixture
def client(app: FastAPI) -> TestClient:
    return TestClient(app, headers={"Authorization": "Bearer admin"})


@pytest.fixture
def masked(app: FastAPI) -> TestClient:
    return TestClient(app, headers={"Authorization": "Bearer viewer"})


def paths(app: FastAPI) -> list[tuple[str, str]]:
    fixed = {"/api/v1/tables/{name}": "/api/v1/tables/final_ui", "/static/{name}": "/static/page.js"}
    routes = [(route.methods, fixed.get(route.path, route.path)) for route in app.routes]  # type: ignore[attr-defined]
    return [(method, path) for methods, path in routes for method in methods - {"HEAD"}]


def test_nobody_gets_401_and_the_wrong_role_403_everywhere(app: FastAPI) -> None:
    found = paths(app)
    assert len(found) >= 12
    for method, path in found:
        assert TestClient(app).request(method, path).status_code == 401, path
        stranger = TestClient(app, headers={"Authorization": "Bearer stranger"})
        assert stranger.request(method, path).status_code == 403, path


def test_a_viewer_who_may_only_read_cannot_command(masked: TestClient) -> None:
    for name in ("plan", "swap", "rollback"):
        assert masked.post(f"/api/v1/{name}", json={}).status_code == 403
    assert masked.get("/api/v1/me").json() == {"name": "viewer", "mayCommand": False, "seesAddresses": False}


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example.org"},
        {"Origin": "null"},
    ],
)
def test_commands_from_another_site_are_refused(client: TestClient, headers: dict[str, str]) -> None:
    for name in ("plan", "swap", "rollback"):
        answer = client.post(f"/api/v1/{name}", json={}, headers=headers)
        assert (answer.status_code, "another site" in answer.text) == (403, True)


def test_a_command_that_cannot_be_meant_is_refused_before_the_broker_is_asked(client: TestClient) -> None:
    assert client.post("/api/v1/swap", json={"joinTyp": "inner"}).status_code == 422
    assert client.post("/api/v1/swap", json={"deadlineSeconds": True}).status_code == 422
    assert client.post("/api/v1/plan", json={"deadlineSeconds": "300"}).status_code == 422
    late = client.post("/api/v1/swap", json={"deadlineSeconds": 0}, headers={"Sec-Fetch-Site": "same-origin"})
    assert (late.status_code, late.json()["detail"][:44]) == (400, "deadlineSeconds must be a number above 0 and")
    answer = client.post("/api/v1/swap", json={"start": "whenever"}, headers={"Sec-Fetch-Site": "same-origin"})
    assert (answer.status_code, "whenever" in answer.json()["detail"]) == (400, True)
    for topics, sentence in (
        ({"usersTopic": "a,b"}, "'a,b' is not a topic name that may be joined"),
        ({"usersTopic": "a", "accountsTopic": "a"}, "users and accounts cannot both come from the topic a"),
        ({"accountsTopic": "control"}, "control is the control topic and cannot be joined"),
    ):
        answer = client.post("/api/v1/swap", json=topics, headers={"Sec-Fetch-Site": "same-origin"})
        assert (answer.status_code, answer.json()["detail"].startswith(sentence)) == (400, True)


def test_a_page_of_rows_has_all_columns(client: TestClient) -> None:
    page = client.get("/api/v1/tables/final_ui", params={"sort": "-age,name", "filter": "age:le:3", "limit": 2}).json()
    assert [row["age"] for row in page["rows"]] == [3, 3]
    assert (page["total"], page["generation"]) == (12, 1)
    first = client.get("/api/v1/tables/final_ui", params={"limit": 1}).json()["rows"]
    expected = joined_rows(range(29, 30))[0]
    moment = expected["userTs"].isoformat().replace("+00:00", "Z")
    assert first == [expected | {"userTs": moment}]


def test_addresses_are_masked_for_a_viewer_who_may_not_see_them(client: TestClient, masked: TestClient) -> None:
    url = "/api/v1/tables/final_ui?limit=3"
    assert [row["email"] for row in client.get(url).json()["rows"]] == [f"person{n}@example.org" for n in (29, 28, 27)]
    assert [row["email"] for row in masked.get(url).json()["rows"]] == ["p…@…"] * 3
    assert masked.get("/api/v1/tables/final_ui?sort=email").status_code == 400
    columns = {table["name"]: table["columns"] for table in masked.get("/api/v1/tables").json()}
    assert [column["name"] for column in columns["final_ui"] if column["holdsAddresses"]] == ["email"]
    assert [column["name"] for column in columns["rejects_ui"] if column["holdsAddresses"]] == ["value"]
    assert masked.get("/api/v1/tables/final_ui?filter=email:startsWith:p").status_code == 400
    assert masked.get("/api/v1/tables/final_ui?quick=person29").json()["total"] == 0


def keep_messages(layout: Layout, *values: str | None) -> None:
    where = {"topic": "control", "partition": 0}
    rows = [
        where | {"offset": offset, "ts": START + timedelta(seconds=offset), "value": value}
        for offset, value in enumerate(values)
    ]
    store.append_rows(layout, "control_raw", rows)


def test_a_control_message_is_shown_as_it_came_masked_and_cut(
    client: TestClient, masked: TestClient, layout: Layout
) -> None:
    url = "/api/v1/tables/control_raw"
    long = "x" * (MOST_CHARACTERS - 3) + "ada@example.org" + "y" * 70_000
    keep_messages(layout, '{"usersTopic": "ada@example.org"}', None, "<script>{nonsense", long)
    cut = f"{long[:MOST_CHARACTERS]}… ({len(long)} characters)"
    shown = [row["value"] for row in client.get(url).json()["rows"]]
    assert shown == [cut, "<script>{nonsense", None, '{"usersTopic": "ada@example.org"}']
    hidden = masked.get(url)
    assert [row["offset"] for row in hidden.json()["rows"]] == [3, 2, 1, 0]
    assert [row["value"] for row in hidden.json()["rows"]][1:] == ["<script>{nonsense", None, '{"usersTopic": "a…@…"}']
    assert "ada" not in hidden.text
    assert masked.get(f"{url}?sort=value").status_code == 400
    assert masked.get(f"{url}?filter=value:startsWith:x").status_code == 400
    assert masked.get(f"{url}?quick=ada").json()["total"] == 0


def test_the_status_row_is_a_table_of_the_page(client: TestClient) -> None:
    page = client.get("/api/v1/tables/orchestrator_status").json()
    assert [(row["generation"], row["joinType"], row["state"]) for row in page["rows"]] == [(1, "left", "ACTIVE")]


def test_only_known_names_are_read(client: TestClient) -> None:
    for name in ("joined", "secrets", "..%2Fsecrets", "final_ui'--"):
        assert client.get(f"/api/v1/tables/{name}").status_code == 404
    names = [table["name"] for table in client.get("/api/v1/tables").json()]
    prototype = {"users_ui", "accounts_ui", "final_ui", "orchestrator_status", "orchestrator_logs", "control_raw"}
    assert prototype <= set(names)
    for name in names:
        assert client.get(f"/api/v1/tables/{name}").status_code == 200, name


def test_the_page_and_its_files_are_served_and_nothing_else(client: TestClient) -> None:
    page = client.get("/")
    assert "Switchyard" in page.text
    assert "frame-ancestors 'self'" in page.headers["content-security-policy"]
    assert client.get("/static/page.js").text == "1"
    for path in ("/static/..%2F..%2Fsecrets", "/static/%2Fetc%2Fpasswd", "/static/none.js"):
        assert client.get(path).status_code == 404


def test_status_and_swap_show_what_the_tables_say(client: TestClient, layout: Layout) -> None:
    status = client.get("/api/v1/status").json()
    assert (status["generation"], status["joinType"], status["healthy"]) == (1, "left", False)
    row = {"swapId": "s1", "generation": 2, "event": "FAILED", "at": START, "detail": "it broke", "requestedBy": "x"}
    store.append_rows(layout, "swap_history", [row])
    swap = client.get("/api/v1/swaps", params={"id": "s1"}).json()
    assert (swap["outcome"], swap["detail"], len(swap["events"])) == ("FAILED", "it broke", 1)
    assert client.get("/api/v1/swaps", params={"id": "s2"}).json()["outcome"] is None


def test_metrics_are_what_the_tables_say(client: TestClient, layout: Layout) -> None:
    answer = client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    first = parse(answer.text)
    assert first["switchyard_healthy"].value() == 0
    assert first["switchyard_table_rows"].value(table="joined") == 30
    assert first["switchyard_table_files"].value(table="joined") == 3
    add_joined(layout, joined_rows(range(30, 34)))
    at = datetime.now(UTC)
    versions = [store.open_table(layout, name).version() for name in BIG_TABLES]
    ends = '{"users": {"0": 40}, "accounts": {"0": 12}}'
    starts = {"users": {0: 10}, "accounts": {0: 2}}
    keep_spec(layout, make_spec(startOffsets=starts))
    for batch_id, batch_ms, start in ((6, 2500, "{}"), (7, 400, "{}"), (7, 0, None)):
        row = Progress(1, 2, batch_id, at, 60, 1.0, batch_ms, 5, *versions, 0, 0, start, ends)
        report(layout, replace(row, at=at + timedelta(milliseconds=batch_id * 10 - batch_ms)))
    incident = {"at": at, "check": "lag", "stage": "RAISED", "level": "person needed", "detail": "far behind"}
    store.append_rows(layout, "incidents", [incident])
    audit = {"at": at, "generation": 1, "missing": 1, "extra": 2, "unaccounted": 0}
    store.append_rows(layout, "audits", [audit, audit | {"generation": 9, "missing": 50}])
    shown = parse(client.get("/metrics").text)
    assert [shown[f"switchyard_{name}"].value() for name in ("healthy", "lag_records", "epoch")] == [1, 5, 1]
    assert shown["switchyard_heartbeat_age_seconds"].value() < 60
    assert shown["switchyard_records_per_second"].value() == 18.0
    assert shown["switchyard_batches_total"].value(generation="1") == 8
    assert shown["switchyard_driver_attempts_total"].value(generation="1") == 2
    assert [shown[f"switchyard_batch{name}_seconds"].value() for name in ("", "_max")] == [0.4, 2.5]
    assert shown["switchyard_position_offset"].value(topic="users", partition="0") == 40
    assert shown["switchyard_records_read_total"].value(generation="1", topic="accounts") == 10
    assert shown["switchyard_table_rows"].value(table="joined") == 34
    assert shown["switchyard_incidents_open"].value(check="lag", level="person_needed") == 1
    assert shown["switchyard_audit_differences"].value() == 3
    assert shown.keys() == {metric.name for metric in EXPORTED} - {"switchyard_last_swap_seconds"}


def test_outcomes_are_counted_over_the_whole_history(client: TestClient, layout: Layout) -> None:
    """Also those beyond the rows that the page shows, and a counter never falls."""
    row = {"event": "REJECTED", "at": START, "detail": "no", "requestedBy": "x"}
    numbers = range(WINDOW_ROWS + 5)
    store.append_rows(layout, "swap_history", [row | {"swapId": f"s{number}"} for number in numbers])
    for more in (0, 1):
        store.append_rows(layout, "swap_history", [row | {"swapId": f"more{each}"} for each in range(more)])
        shown = parse(client.get("/metrics").text)
        assert shown["switchyard_swaps_total"].value(outcome="rejected") == len(numbers) + more


def test_the_command_line_prints_the_same_metrics(
    client: TestClient, layout: Layout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SWITCHYARD_ROOT", layout.root)
    assert main(["metrics"]) == 0
    printed, served = parse(capsys.readouterr().out), parse(client.get("/metrics").text)
    for families in (printed, served):
        del families["switchyard_heartbeat_age_seconds"]
    assert printed == served
    assert main(["metrics", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["switchyard_active_generation"] == [{"labels": {}, "value": 1}]


def tell(layout: Layout, msg: str) -> None:
    store.append_rows(layout, "logs", [{"ts": datetime.now(UTC), "level": "INFO", "msg": msg}])


def test_changes_go_on_after_a_position_without_a_hole(reader: Any, layout: Layout) -> None:
    changes = Changes(layout, LiveTables(layout))
    start = changes.now()
    assert changes.after(start) == ([], start)
    tell(layout, "one")
    events, second = changes.after(start)
    assert [row["msg"] for event in events for row in event.data["rows"]] == ["one"]
    tell(layout, "two")
    tell(layout, "three")
    other_process = Changes(layout, LiveTables(layout))
    events, third = other_process.after(parse_position(format_position(second)))
    assert [row["msg"] for event in events for row in event.data["rows"]] == ["two", "three"]
    assert other_process.after(third)[0] == []


def test_new_rows_come_when_progress_names_their_version(reader: Any, layout: Layout) -> None:
    changes = Changes(layout, LiveTables(layout))
    start = changes.now()
    add_joined(layout, joined_rows(range(30, 33)))
    assert changes.after(start, ["final_ui"])[0] == []
    report_progress(layout, seconds=1)
    events, position = changes.after(start, ["final_ui", "users_ui"])
    rows = [event.data for event in events if event.kind == "rows"]
    assert [document["rows"] for document in rows] == [joined_rows(range(30, 33))]
    add_joined(layout, joined_rows(range(33, 2000)))
    report_progress(layout, seconds=2)
    events, _ = changes.after(position, ["final_ui"])
    assert [(e.data["rows"], e.data["more"]) for e in events if e.kind == "rows"] == [([], 1967)]


def test_a_flip_is_a_change(reader: Any, layout: Layout) -> None:
    changes = Changes(layout, LiveTables(layout))
    start = changes.now()
    add_joined(layout, joined_rows(range(5), generation=2))
    report_progress(layout, generation=2)
    set_status(layout, 2)
    events, _ = changes.after(start, ["final_ui"])
    assert [event.data["generation"] for event in events if event.kind == "tables"] == [2]
    assert [row["generation"] for event in events if event.kind == "statusRow" for row in event.data["rows"]] == [2]
    assert not [event for event in events if event.kind == "rows"]


def test_a_position_that_no_log_has_starts_over(reader: Any, layout: Layout) -> None:
    changes = Changes(layout, LiveTables(layout))
    events, position = changes.after(changes.now() | {"status": 999})
    assert [event.kind for event in events] == ["reset"]
    assert position == changes.now()


async def read_to_status(stream: AsyncIterator[bytes]) -> list[dict[str, str]]:
    """The fields of each event, up to the next one that carries a position, each checked against its document."""
    events: list[dict[str, str]] = []
    while not events or events[-1]["event"] != "status":
        lines = (await anext(stream)).decode().removesuffix("\n\n").split("\n")
        events.append(dict(line.split(": ", 1) for line in lines))
        EVENTS[events[-1]["event"]].model_validate_json(events[-1]["data"], strict=True)
    assert ["id" in event for event in events] == [False] * (len(events) - 1) + [True]
    return events


def test_the_stream_masks_and_carries_its_position(reader: Any, layout: Layout, settings: Settings) -> None:
    model = ReadModel(settings)

    async def follow() -> list[list[dict[str, str]]]:
        stream = stream_changes(model, VIEWERS["viewer"], None, ["final_ui"])
        first = await read_to_status(stream)
        add_joined(layout, joined_rows(range(30, 32)))
        report_progress(layout, seconds=1)
        return [first, await read_to_status(stream)]

    first, second = asyncio.run(follow())
    assert [event["retry"] for event in first] == ["1000"]
    assert parse_position(first[0]["id"])["joined"] == 3
    assert [event["event"] for event in second] == ["progress", "rows", "tables", "status"]
    assert not [event for event in second if "person" in event["data"]]
    assert [row["email"] for row in json.loads(second[1]["data"])["rows"]] == ["p…@…", "p…@…"]


def test_each_event_carries_the_document_that_is_named_for_it(reader: Any, layout: Layout, settings: Settings) -> None:
    """`read_to_status` compares; the tables cannot be made unreadable here, so `trouble` does not come."""
    model = ReadModel(settings)
    position = model.changes.now() | {"status": -1}
    add_joined(layout, joined_rows(range(30, 32)))
    report_progress(layout, seconds=1)
    tell(layout, "a line separator \u2028 and a next line \x85")
    keep_messages(layout, "{}")
    store.append_rows(layout, "swap_history", [{"swapId": "a", "event": "REFRESHED", "at": START}])

    async def follow() -> set[str]:
        stream = stream_changes(model, VIEWERS["admin"], position, ["final_ui"])
        lost = stream_changes(model, VIEWERS["admin"], position | {"status": 999}, [])
        return {event["event"] for each in (stream, stream, lost, lost) for event in await read_to_status(each)}

    assert asyncio.run(follow()) == EVENTS.keys() - {"trouble"}


def test_a_new_control_message_comes_with_the_stream_masked_and_cut(
    reader: Any, layout: Layout, settings: Settings
) -> None:
    model = ReadModel(settings)

    async def follow() -> list[dict[str, str]]:
        stream = stream_changes(model, VIEWERS["viewer"], None, [])
        await read_to_status(stream)
        keep_messages(layout, '{"id": "ada@example.org"}', "x " * 35_000)
        return await read_to_status(stream)

    events = asyncio.run(follow())
    assert [event["event"] for event in events] == ["control", "status"]
    assert "ada" not in events[0]["data"]
    values = [row["value"] for row in json.loads(events[0]["data"])["rows"]]
    assert values == ['{"id": "a…@…"}', "x " * (MOST_CHARACTERS // 2) + "… (70000 characters)"]


def test_a_stream_ends_so_that_the_login_is_checked_again(reader: Any, layout: Layout, settings: Settings) -> None:
    async def read_to_end() -> int:
        stream = stream_changes(ReadModel(settings), VIEWERS["admin"], None, [], life_seconds=0.1)
        return len([part async for part in stream])

    assert asyncio.run(read_to_end()) == 1


@pytest.mark.parametrize("query", ["rows=joined", "position=x", "position=status%3D1%0Aid:"])
def test_a_stream_refuses_what_it_does_not_know(client: TestClient, query: str) -> None:
    assert client.get(f"/api/v1/changes?{query}").status_code == 400


def test_every_answer_is_as_the_description_says(app: FastAPI) -> None:
    schema = schemathesis.openapi.from_dict(app.openapi()).exclude(path=["/api/v1/changes", "/api/v1/topics"])
    schema.app = app
    operations = [result.ok() for result in schema.include(method="GET").get_all_operations()]
    assert len(operations) >= 6
    for operation in operations:

        @settings(max_examples=15, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy())
        def check(case: Any) -> None:
            # Which columns a table has, no description can say: a filter on another one is refused.
            case.call_and_validate(
                headers={"Authorization": "Bearer admin"}, excluded_checks=[positive_data_acceptance]
            )

        check()


def test_an_error_that_nobody_foresaw_is_one_sentence(app: FastAPI, layout: Layout) -> None:
    for path in Path(layout.table("joined")).rglob("*.parquet"):
        path.write_text("jane@example.org")
    client = TestClient(app, headers={"Authorization": "Bearer admin"}, raise_server_exceptions=False)
    answer = client.get("/api/v1/tables/final_ui")
    assert answer.status_code == 500
    assert answer.json()["detail"].endswith("; the log of the API server has the details")
    assert "jane" not in answer.text
    assert "\\n" not in answer.text


def test_the_page_is_told_when_each_will_retire(kept_root: Layout, kept: HistoryStore, tmp_path: Path) -> None:
    """Of these its fact *lingering* is made."""
    for name in ("index.html", "page.js"):
        (tmp_path / name).touch()
    everybody = Access(read=lambda: Viewer("test"), command=lambda: Viewer("test"))
    client = TestClient(create_app(Settings(root=kept_root.root), everybody, tmp_path))
    shown = client.get("/api/v1/status").json()
    assert shown["lingering"] == [1, 2, 3]
    assert [(one["generation"], datetime.fromisoformat(one["at"])) for one in shown["retires"]] == [
        (entry.generation, (entry.at + timedelta(seconds=900)).replace(microsecond=0))
        for entry in kept.ledger().lingering
    ]
