"""The router's page, in a real browser: what it shows, of whatever fleet."""

import re

import pytest

from kvmesh.v1 import generate_pb2 as pb
from tests.router.asking import answer, request
from tests.router.browser_fixture import browser, ui_page
from tests.router.fleet_fixture import eventually, running_fleet
from tests.router.stub_node import Script, StubNode

__all__ = ["browser"]

pytestmark = pytest.mark.asyncio(loop_scope="module")

HOSTILE = "<img src=x onerror='window.pwned=1'>"


async def test_an_idle_fleet_asks_nobody_else_for_anything(browser):
    async with (
        running_fleet(StubNode("node-0"), StubNode("node-1")) as fleet,
        ui_page(browser, fleet.http_url) as page,
    ):
        await page.shows("#status", "live")
        await page.shows(".tile", "2 of 2")
        await page.shows("#about", "tiny · prefix-aware")
        await page.shows("#no-requests", "No request has ended yet")
        first, _ = await page.rows("nodes")
        epoch = fleet.nodes[0].info.epoch
        assert first.startswith(f"node-0 {fleet.nodes[0].address} epoch {epoch} up")
        assert "0 held · 0 cached · 512 free" in first
        assert all(url.startswith(fleet.http_url) for url in page.asked)
        assert page.complaints == []


async def test_a_request_has_its_whole_story(browser):
    nodes = (StubNode("node-0"), StubNode("node-1"))
    async with running_fleet(*nodes) as fleet, ui_page(browser, fleet.http_url) as page:
        await answer(fleet, request("p" * 65, 2))
        await eventually(lambda: sum(n.indexed_blocks for n in fleet.app.view.nodes()) == 4)
        asked = {"prompt": "p" * 65, "max_tokens": 2}
        reply = await fleet.http.post(
            "/v1/completions", json=asked, headers={"x-request-id": "second"}
        )
        node = reply.headers["x-kvmesh-node"]
        await page.shows("#requests .id", "second")
        newest, oldest = await page.rows("requests")
        assert f"second completions OK {node} longest prefix: 64 of 65 tokens" in newest
        assert "64 (98 %) predicted 64 65" in newest
        assert "0 (0 %) predicted 0 65" in oldest
        assert page.complaints == []
        assert "pppp" not in (await fleet.http.get("/ui/state")).text


async def test_running_requests_hold_blocks_and_a_drain_shows(browser):
    slow = StubNode("node-0", script=Script(per_token=0.05))
    async with running_fleet(slow) as fleet, ui_page(browser, fleet.http_url) as page:
        call = fleet.inference.Generate(request("x" * 32, 400))
        await call.read()
        await page.shows("#nodes tbody tr", "27 held · 0 cached · 485 free")
        assert await page.page.locator("#nodes .bar .held").first.bounding_box() is not None
        await page.shows(".tile", "In flight1")
        slow.draining = True
        slow.notify()
        await page.shows("#nodes .pill", "draining")
        await page.shows(".tile", "0 of 1")
        call.cancel()


async def test_what_others_have_named_is_shown_and_never_run(browser):
    node = StubNode(HOSTILE, changes={"model": f"{HOSTILE}m"})
    async with running_fleet(node) as fleet, ui_page(browser, fleet.http_url) as page:
        asked = {"prompt": "x", "model": f"<script>window.pwned=2</script>{HOSTILE}"}
        await fleet.http.post("/v1/completions", json=asked, headers={"x-request-id": HOSTILE})
        await answer(fleet, request("fine", 1))
        bad = pb.GenerateRequest(text="x", request_id=HOSTILE, model=f"{HOSTILE}m")
        call = fleet.inference.Generate(bad)
        assert (await call.code()).name == "INVALID_ARGUMENT"
        await page.shows("#requests .id", HOSTILE)
        await page.shows("#requests .detail", "<script>window.pwned=2</script>")
        await page.shows("#nodes b", HOSTILE)
        await page.shows("#about", f"{HOSTILE}m")
        await node.stop()
        await page.shows("#nodes .pill", "down")
        assert await page.page.evaluate("window.pwned") is None
        assert await page.page.locator("img, #fleet script").count() == 0
        assert page.complaints == []


async def test_markup_that_got_in_by_a_mistake_would_not_run_either(browser):
    async with running_fleet(StubNode()) as fleet, ui_page(browser, fleet.http_url) as page:
        await page.shows("#status", "live")
        tried = f"try {{ document.body.innerHTML = `{HOSTILE}` }} catch (e) {{ e.name }}"
        assert await page.page.evaluate(tried) == "TypeError"
        policy = (await fleet.http.get("/ui")).headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy


async def test_two_hundred_nodes_fit_and_those_in_trouble_come_first(browser):
    nodes = [StubNode(f"node-{place}", 64) for place in range(200)]
    async with running_fleet(*nodes) as fleet, ui_page(browser, fleet.http_url) as page:
        await page.shows(".tile", "200 of 200")
        await page.shows("#memory-note", "12,800 blocks")
        await nodes[150].stop()
        await page.shows("#nodes tbody tr:first-child", "node-150")
        assert len(await page.rows("nodes")) == 200
        await page.shows("#nodes-note", "199 up · 1 down")
        box = await page.page.locator("#requests, #no-requests").first.bounding_box()
        assert await page.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert box is None or box["y"] < 2000  # the nodes scroll, the page hardly does
        assert page.complaints == []


async def test_a_router_that_is_away_is_said_to_be_and_the_page_goes_on(browser):
    async with running_fleet(StubNode()) as fleet, ui_page(browser, fleet.http_url) as page:
        await page.shows("#status", "live")
        await page.page.route("**/ui/state", lambda route: route.abort())
        await page.shows("#status", "no answer, last seen")
        assert await page.page.locator("body.stale").count() == 1
        await page.shows("#status", re.compile(r"last seen ([2-9]|\d\d) s ago"))
        await page.page.unroute("**/ui/state")
        await page.shows("#status", "live")
        assert await page.page.locator("body.stale").count() == 0


async def test_a_narrow_page_needs_no_sideways_scrolling(browser):
    fits = (
        "[document.documentElement, ...document.querySelectorAll('.scroll')]"
        ".every(each => each.scrollWidth <= each.clientWidth)"
    )
    async with running_fleet(StubNode()) as fleet, ui_page(browser, fleet.http_url, 700) as page:
        await answer(fleet, request("p" * 65, 2))
        await page.shows("#requests tbody tr", "predicted")
        for width in (700, 1280):
            await page.page.set_viewport_size({"width": width, "height": 900})
            assert await page.page.evaluate(fits), width
