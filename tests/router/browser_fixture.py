"""Pages of a router in headless Chromium, for tests."""

import contextlib
import re
import shutil
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE = 30_000  # milliseconds, on a busy machine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser():
    """For the pages of a module's tests."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("chromium is not installed")
    async with async_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        chromium = await playwright.chromium.launch(executable_path=found, args=arguments)
        yield chromium
        await chromium.close()


class UiPage:
    """The router's page. `complaints` are its scripts', refused requests apart; `asked` is whom it
    has asked for anything.
    """

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.asked: list[str] = []
        page.set_default_timeout(PATIENCE)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._note)
        page.on("request", lambda request: self.asked.append(request.url))

    async def shows(self, selector: str, text: str | re.Pattern[str]) -> None:
        """Waits until an element that `selector` finds shows `text`, or what is like it."""
        await self.page.locator(selector).filter(has_text=text).first.wait_for(state="visible")

    async def rows(self, table: str) -> list[str]:
        """The text of each row of the table with that id, parts apart by one space."""
        texts = await self.page.locator(f"#{table} tbody tr").all_inner_texts()
        return [" ".join(text.split()) for text in texts]

    def _note(self, message: ConsoleMessage) -> None:
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.complaints.append(message.text)


@contextlib.asynccontextmanager
async def ui_page(browser: Browser, url: str, width: int = 1280) -> AsyncIterator[UiPage]:
    """Opened in a context of its own: nothing of other pages is known to it."""
    context = await browser.new_context(viewport={"width": width, "height": 900})
    try:
        page = UiPage(await context.new_page())
        await page.page.goto(f"{url}/ui")
        yield page
    finally:
        await context.close()
