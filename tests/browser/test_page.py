"""The page in a real browser against the running stack. The tests share the page, in order."""

from __future__ import annotations

import json
import os
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from playwright.sync_api import BrowserContext, FrameLocator, Page, Route, expect

from switchyard.kafka.control_topic import publish
from switchyard.local.airflow import airflow_url, read_password
from switchyard.tables import store
from tests.browser.conftest import frame_of, log_in, make_tokens, take_picture
from tests.integration.conftest import Stack
from tests.integration.traffic import running_traffic
from tests.waiting import eventually

SCRIPT = "<script>document.title='broken'</script>"
HERE = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture(scope="module", autouse=True)
def traffic(stack: Stack) -> Iterator[None]:
    """Events to whatever is active, and one with a script for a name."""
    status = stack.status()
    pair = (status["usersTopic"], status["accountsTopic"])
    with running_traffic(stack.settings.layout, stack.settings.bootstrap, [pair], with_reader=False):
        producer = Producer({"bootstrap.servers": stack.settings.bootstrap})
        producer.produce(pair[0], json.dumps({"userId": "odd", "name": SCRIPT, "email": "odd@example.org"}).encode())
        producer.produce(pair[0], b'{"userId": "odd", "age": "old", "email": "odd@example.org"}')
        assert producer.flush(30) == 0
        yield


def call(stack: Stack, path: str, token: str | None, body: Any = None, headers: dict[str, str] | None = None) -> int:
    request = urllib.request.Request(
        f"{airflow_url(stack.settings)}/switchyard{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json", **(headers or {})},
    )
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_airflow_decides_who_may_read_and_command(stack: Stack) -> None:
    reads = ["/", "/static/page.js", "/api/v1/status", "/api/v1/tables/final_ui", "/api/v1/openapi.json"]
    viewer, user = make_tokens(stack, "viewer", "user")
    assert [call(stack, path, None) for path in reads] == [401] * len(reads)
    assert [call(stack, path, viewer) for path in reads] == [200] * len(reads)
    assert call(stack, "/api/v1/changes", None) == 401
    for name in ("plan", "swap", "rollback"):
        path = f"/api/v1/{name}"
        assert call(stack, path, None, {}, HERE) == 401
        assert call(stack, path, viewer, {}, HERE) == 403
        assert call(stack, path, user, {}, {"Sec-Fetch-Site": "cross-site"}) == 403
    assert call(stack, "/api/v1/plan", user, {}, HERE) == 200
    assert "nonsense" not in viewer
    assert call(stack, "/api/v1/status", "nonsense") == 403


def rows_of(frame: FrameLocator, name: str) -> list[str]:
    return frame.locator(f"#{name} .ag-row").all_inner_texts()


def column_of(frame: FrameLocator, name: str, column: str) -> list[str]:
    """The texts of a column from the first row down; the order of the elements is another one.

    A cell that was drawn again between the search and the look has no row any more.
    """
    cells = frame.locator(f"#{name} .ag-row .ag-cell[col-id={column}]")
    found = cells.evaluate_all(
        "all => all.filter(c => c.parentElement).map(c => [+c.parentElement.getAttribute('row-index'), c.innerText])"
    )
    return [text for _, text in sorted(found)]


def balances_of(frame: FrameLocator, name: str) -> list[float]:
    """From the first row down; none while rows are on their way, which are shown empty."""
    texts = column_of(frame, name, "balance")
    return [float(text) for text in texts] if all(texts) else []


def fact(frame: FrameLocator, name: str) -> str:
    return frame.locator(f"[data-fact={name}] b").inner_text()


def test_rows_arrive_by_themselves_and_a_script_is_text(page: Page) -> None:
    frame = frame_of(page)
    expect(frame.locator("#connection")).to_have_text("live")
    expect(frame.locator("#final_ui .ag-row").first).to_be_visible()
    first = rows_of(frame, "users_ui")[0]
    eventually(lambda: (rows := rows_of(frame, "users_ui")) and rows[0] != first, 30)
    expect(frame.locator("#users_ui .ag-row.fresh").first).to_be_attached()
    take_picture(page, "page-light")
    frame.locator("#users_ui input[type=search]").fill("script")
    expect(frame.locator("#users_ui .ag-row").first).to_contain_text(SCRIPT)
    frame.locator("#users_ui input[type=search]").fill("")
    expect(frame.locator("#rejects_ui .ag-row").first).to_contain_text("age")
    assert page.title() != "broken"


def test_filter_and_sort_are_the_servers(page: Page) -> None:
    frame = frame_of(page)
    frame.locator("#final_ui input[type=search]").fill("numbered")
    eventually(lambda: (rows := rows_of(frame, "final_ui")) and all("numbered" in row for row in rows), 30)
    frame.locator("#final_ui .ag-header-cell[col-id=balance] .ag-header-cell-label").click()

    def is_sorted() -> bool:
        balances = balances_of(frame, "final_ui")
        return len(balances) > 3 and balances == sorted(balances) and balances[0] < 10

    eventually(is_sorted, 30)


def test_a_column_filter_and_a_sort_by_keyboard(page: Page) -> None:
    frame = frame_of(page)
    cell = frame.locator("#accounts_ui .ag-header-cell[col-id=balance]")
    cell.hover()
    cell.locator(".ag-header-cell-filter-button").click()
    frame.locator(".ag-filter select, .ag-filter .ag-picker-field-wrapper").first.click()
    frame.get_by_role("option", name="Less than", exact=True).click()
    frame.locator(".ag-filter input[type=number]").first.fill("5")
    eventually(lambda: (found := balances_of(frame, "accounts_ui")) and max(found) < 5, 30)
    page.keyboard.press("Escape")
    frame.locator("#accounts_ui .ag-header-cell[col-id=balance]").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")

    def falls() -> bool:
        balances = balances_of(frame, "accounts_ui")
        return len(balances) > 1 and balances == sorted(balances, reverse=True)

    eventually(falls, 30)


def test_a_command_can_be_asked_for_and_left_by_keyboard(page: Page, stack: Stack) -> None:
    frame = frame_of(page)
    before = len(stack.history.ledger().entries)
    frame.get_by_role("button", name="Swap", exact=True).focus()
    page.keyboard.press("Enter")
    expect(frame.locator("dialog")).to_contain_text("what is active now")
    page.keyboard.press("Escape")
    expect(frame.locator("dialog")).to_have_count(0)
    assert len(stack.history.ledger().entries) == before


def send_form(frame: FrameLocator, join: str, users: str = "") -> None:
    frame.locator("[name=joinType]").select_option(join)
    frame.locator("[name=usersTopic]").fill(users)
    frame.get_by_role("button", name="Swap", exact=True).click()
    frame.locator("dialog button.primary").click()


def test_a_bad_name_is_refused_by_the_form_and_not_sent(page: Page, stack: Stack) -> None:
    frame = frame_of(page)
    before = store.open_table(stack.settings.layout, "control_raw").version()
    send_form(frame, "", "a,b")
    expect(frame.locator("#progress-lines li.bad")).to_contain_text("'a,b' is not a topic name that may be joined")
    frame.locator("[name=usersTopic]").fill("")
    assert store.open_table(stack.settings.layout, "control_raw").version() == before


def test_all_six_tables_of_the_prototype_have_a_place(page: Page, stack: Stack) -> None:
    frame = frame_of(page)
    for name in ("final_ui", "users_ui", "accounts_ui", "orchestrator_status"):
        expect(frame.locator(f"#{name} .ag-row").first).to_be_visible()
    expect(frame.locator("#log li").first).to_be_visible()
    status = stack.status()
    expect(frame.locator("#orchestrator_status .ag-row")).to_have_count(1)
    assert column_of(frame, "orchestrator_status", "generation") == [str(status["generation"])]
    assert column_of(frame, "orchestrator_status", "usersTopic") == [status["usersTopic"]]
    publish(stack.kafka, stack.settings.control_topic, f"{SCRIPT} {{nonsense".encode(), "cli:test")
    eventually(lambda: f"{SCRIPT} {{nonsense" in column_of(frame, "control_raw", "value")[:1], 60)
    assert page.title() != "broken"
    frame.locator("#control_raw").scroll_into_view_if_needed()
    take_picture(page, "page-control")


def test_a_rejected_command_is_shown_with_its_reason(page: Page) -> None:
    frame = frame_of(page)
    frame.locator("[name=usersTopic]").fill("not-there")
    frame.get_by_role("button", name="Plan").click()
    expect(frame.locator("#progress-lines")).to_contain_text("the topic not-there does not exist")
    send_form(frame, "", "not-there")
    expect(frame.locator("#progress-lines li.bad")).to_contain_text("REJECTED: the topic not-there does not exist")
    eventually(lambda: (sent := column_of(frame, "control_raw", "value")) and "not-there" in sent[0], 30)
    frame.locator("[name=usersTopic]").fill("")


def test_grids_go_on_over_a_swap_from_the_form(page: Page, stack: Stack) -> None:
    frame = frame_of(page)
    before = stack.status()
    viewport = frame.locator("#final_ui .ag-body-viewport")
    viewport.evaluate("element => { element.scrollTop = 64 }")
    send_form(frame, "inner" if before["joinType"] != "inner" else "left")
    expect(frame.locator("#progress-lines")).to_contain_text("sent as page-")
    seen: list[int] = []

    def has_flipped() -> bool:
        seen.append(len(rows_of(frame, "final_ui")))
        if len(seen) % 10 == 1:
            take_picture(page, f"swap-{len(seen):03}")
        return "now generation" in frame.locator("#flip").inner_text()

    eventually(has_flipped, 180, 0.3)
    expect(frame.locator("[data-fact=lingering]")).to_contain_text("until", timeout=10_000)
    assert min(seen) > 0
    expect(frame.locator("#progress-lines")).to_contain_text("APPLIED", timeout=30_000)
    assert fact(frame, "generation") == str(stack.status()["generation"])
    eventually(lambda: column_of(frame, "orchestrator_status", "generation") == [fact(frame, "generation")], 30)
    assert frame.locator("#final_ui input[type=search]").input_value() == "numbered"
    eventually(lambda: (rows := rows_of(frame, "final_ui")) and all("numbered" in row for row in rows), 30)
    assert viewport.evaluate("element => element.scrollTop") == 64
    take_picture(page, "swap-999")


def test_rollback_from_the_page(page: Page, stack: Stack) -> None:
    frame = frame_of(page)
    before = stack.status()["generation"]
    frame.get_by_role("button", name="Roll back").click()
    frame.locator("dialog button.primary").click()
    expect(frame.locator("#progress-lines")).to_contain_text("APPLIED", timeout=180_000)
    assert stack.status()["generation"] != before
    eventually(lambda: fact(frame, "generation") == str(stack.status()["generation"]), 10)


def test_a_bar_of_the_timeline_leads_to_its_run(page: Page, stack: Stack) -> None:
    run = f"generation-{stack.status()['generation']}"
    frame_of(page).locator(f"#timeline .life[aria-label*='{run.replace('-', ' ')}']").click()
    page.wait_for_url(f"{airflow_url(stack.settings)}/dags/switchyard_generation/runs/{run}*")
    expect(page.get_by_text(run).first).to_be_visible()
    page.goto(f"{airflow_url(stack.settings)}/plugin/switchyard")
    expect(frame_of(page).locator("#connection")).to_have_text("live")


def test_both_themes_and_a_narrow_screen(page: Page) -> None:
    root = page.frames[-1].locator("html")
    expect(root).to_have_attribute("data-theme", "light")
    page.evaluate("document.documentElement.className = 'dark'; document.documentElement.style.colorScheme = 'dark'")
    expect(root).to_have_attribute("data-theme", "dark")
    take_picture(page, "page-dark")
    page.set_viewport_size({"width": 390, "height": 844})
    take_picture(page, "page-narrow")
    width = page.frames[-1].evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert width <= 0
    page.set_viewport_size({"width": 1280, "height": 900})


def test_a_generation_that_is_kept_without_an_end_is_shown_so(context: BrowserContext, stack: Stack) -> None:
    """What a server with SWITCHYARD_RETIRE_AFTER_SECONDS=0 answers; the generations of this stack retire in time."""

    def answer(route: Route) -> None:
        found = route.fetch()
        route.fulfill(response=found, json=found.json() | {"retires": [{"generation": 1, "at": None}]})

    other = context.new_page()
    other.route("**/api/v1/status", answer)
    # The stream would bring the status as it is.
    other.route(re.compile("/api/v1/changes"), lambda route: route.abort())
    other.goto(f"{airflow_url(stack.settings)}/plugin/switchyard")
    expect(frame_of(other).locator("[data-fact=lingering] b")).to_have_text("1 for good")
    other.close()


def test_a_broker_that_does_not_answer_is_said_and_its_rows_come_when_it_is_back(page: Page, stack: Stack) -> None:
    frame = frame_of(page)
    broker = int((stack.settings.workspace.broker / "broker.pid").read_text())
    os.kill(broker, signal.SIGSTOP)
    try:
        frame.locator("[name=usersTopic]").focus()
        expect(frame.locator("#progress-lines")).to_contain_text("cannot ask the broker for its topics")
    finally:
        os.kill(broker, signal.SIGCONT)
    first = rows_of(frame, "users_ui")[0]
    eventually(lambda: (rows := rows_of(frame, "users_ui")) and rows[0] != first, 90)


def test_the_page_heals_after_the_session_ended_and_the_server_was_restarted(
    page: Page, context: BrowserContext, stack: Stack
) -> None:
    frame = frame_of(page)
    context.clear_cookies()
    expect(frame.locator("#connection")).to_contain_text("your session has ended")
    other = context.new_page()
    log_in(other, stack)
    other.close()
    expect(frame.locator("#connection")).to_have_text("live")
    os.kill(stack.component_pid("api-server"), signal.SIGKILL)
    expect(frame.locator("#connection")).to_have_text("connection lost, trying again")
    expect(frame.locator("#connection")).to_have_text("live", timeout=120_000)
    first = rows_of(frame, "users_ui")[0]
    eventually(lambda: (rows := rows_of(frame, "users_ui")) and rows[0] != first, 60)
    assert read_password(stack.settings.workspace) not in page.content()
