"""A real Chromium that looks at the page of the running stack, inside the Airflow UI."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, FrameLocator, Page, expect, sync_playwright

from switchyard.layout import PROJECT
from switchyard.local.airflow import USER, airflow_environment, airflow_url, read_password
from tests.integration.conftest import Stack
from tools.browser_package import ensure_chromium

ARTIFACTS = PROJECT / "tests" / "artifacts"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = ensure_chromium(PROJECT / ".cache" / "chromium.log")
    if chromium is None:
        pytest.skip("there is no Chromium and it cannot be installed without asking: install Debian's package chromium")
    expect.set_options(timeout=60_000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme="light")
    context.set_default_timeout(60_000)
    yield context
    context.close()


@pytest.fixture(scope="module")
def page(context: BrowserContext, stack: Stack) -> Page:
    """Logged in, at the page, by way of Airflow's navigation."""
    page = context.new_page()
    log_in(page, stack)
    page.goto(f"{airflow_url(stack.settings)}/plugin/switchyard")
    return page


def log_in(page: Page, stack: Stack) -> None:
    page.goto(f"{airflow_url(stack.settings)}/auth/login")
    page.locator("input[name=username]").fill(USER)
    page.locator("input[name=password]").fill(read_password(stack.settings.workspace))
    page.locator("button[type=submit]").click()
    page.wait_for_url(lambda url: "/auth/login" not in url)


def frame_of(page: Page) -> FrameLocator:
    return page.frame_locator("iframe")


def take_picture(page: Page, name: str) -> Path:
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    path = ARTIFACTS / f"{name}.png"
    page.screenshot(path=path)
    return path


MAKE_TOKENS = """
import sys
from airflow.api_fastapi.app import init_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
manager = init_auth_manager()
for role in sys.argv[1:]:
    print("token", manager.generate_jwt(SimpleAuthManagerUser(username="someone", role=role)))
"""


def make_tokens(stack: Stack, *roles: str) -> list[str]:
    """Real tokens of users with other roles than the one that `up` creates."""
    answer = subprocess.run(
        [sys.executable, "-c", MAKE_TOKENS, *roles],
        env=airflow_environment(stack.settings, base=stack.environment),
        capture_output=True,
        text=True,
        check=True,
    )
    return [line.split()[1] for line in answer.stdout.splitlines() if line.startswith("token ")]
