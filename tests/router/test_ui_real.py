"""The router's page over real processes: a router and two engines, one of which is killed."""

import asyncio

import pytest

from tests.router.browser_fixture import browser, ui_page
from tests.router.process_fleet import RouterProcess, until
from tests.router.real_node import RealNode, save_model

__all__ = ["browser"]

pytestmark = pytest.mark.asyncio(loop_scope="module")

SYSTEM = "s" * 160  # ten blocks that all requests share
POOL = {"num_blocks": 65, "max_model_len": 512, "swap_space": 0.001}


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    model = save_model(tmp_path_factory.mktemp("model"))
    started = {name: RealNode(model, node_name=name, **POOL) for name in ("node-0", "node-1")}
    yield started
    for node in started.values():
        node.close()


async def test_under_load_and_when_a_node_is_killed(browser, nodes):
    addresses = [node.address for node in nodes.values()]
    router = await RouterProcess("router", addresses, node_silence=1.0).start()
    loading = asyncio.create_task(asyncio.sleep(0))
    try:
        await until(lambda: router.up("node-0", "node-1"))
        async with ui_page(browser, str(router.http.base_url).rstrip("/")) as page:
            await page.shows(".tile", "2 of 2")
            await page.shows("#nodes tbody tr", "0 held · 0 cached · 64 free · swap 0 of")
            loading = asyncio.create_task(keep_loading(router))
            await page.shows("#requests .line", "longest prefix: 160 of")
            await page.shows("#requests td.cache", "predicted 160")
            await page.page.locator("#tiles strong").first.filter(has_not_text="0").wait_for()
            busy = page.page.locator("#nodes .amounts").filter(has_not_text="0 held")
            await busy.first.wait_for()
            nodes["node-1"].close()
            await page.shows("#nodes tbody tr:first-child", "node-1")
            await page.shows("#nodes tbody tr:first-child .pill", "down")
            await page.shows(".tile", "1 of 2")
            await page.shows("#memory-note", "64 blocks")
            assert page.complaints == []
    finally:
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        await router.stop()


async def keep_loading(router):
    """Four clients, each with one question after the other."""

    async def client(name):
        for place in range(10_000):
            body = {"prompt": f"{SYSTEM} {name} {place}", "max_tokens": 48, "temperature": 0}
            await router.http.post("/v1/completions", json=body)

    await asyncio.gather(*(client(name) for name in "abcd"))
