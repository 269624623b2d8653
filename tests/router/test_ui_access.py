"""Who may see the router's page, and what it keeps of the key."""

import asyncio
import ssl

import httpx
import pytest

from kvmesh.v1 import fleet_pb2
from router.overview import Overview
from tests.certificates import Authority
from tests.router.browser_fixture import browser, ui_page
from tests.router.fleet_fixture import running_fleet
from tests.router.stub_node import StubNode

__all__ = ["browser"]

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "admins"
    path.write_text("secret-one\n")
    return path


async def test_the_page_asks_for_an_admin_key_and_forgets_it(browser, key_file):
    async with (
        running_fleet(StubNode(), admin_key_file=key_file) as fleet,
        ui_page(browser, fleet.http_url) as page,
    ):
        await page.shows("#refusal", "/ui needs an admin key")
        assert await page.page.locator("#fleet").is_hidden()
        for wrong, said in (("secret-on", "does not take this key"), ("sécret", "ASCII")):
            await page.page.fill("#key", wrong)
            await page.page.click("#access button")
            await page.shows("#refusal", said)
        await page.page.fill("#key", "secret-one")
        await page.page.press("#key", "Enter")
        await page.shows("#status", "live")
        await page.shows(".tile", "1 of 1")
        kept = "JSON.stringify([localStorage, sessionStorage, document.cookie, location.href])"
        assert "secret" not in await page.page.evaluate(kept)
        assert not any("secret" in url for url in page.asked)
        await page.page.reload()
        await page.shows("#refusal", "/ui needs an admin key")
        assert page.complaints == []


async def test_its_state_is_for_admins_and_its_files_for_everybody(key_file):
    async with running_fleet(StubNode(), admin_key_file=key_file) as fleet:
        for path in ("/ui", "/ui/ui.js", "/ui/ui.css"):
            assert (await fleet.http.get(path)).status_code == 200
        for wrong in ({}, {"authorization": "Bearer secret-on"}, {"x-api-key": "secret-two"}):
            assert (await fleet.http.get("/ui/state", headers=wrong)).status_code == 403
        reply = await fleet.http.get("/ui/state", headers={"authorization": "Bearer secret-one"})
        assert reply.status_code == 200
        assert reply.headers["cache-control"] == "no-store"
        with pytest.raises(Exception, match="Overview needs an admin key"):
            await fleet.fleet.Overview(fleet_pb2.OverviewRequest())


async def test_without_keys_only_the_routers_host_and_no_page_of_another_site():
    async with running_fleet(StubNode(), cors_allow_origins=("*",)) as fleet:
        for host in ("127.0.0.1", "localhost:8000", "[::1]:8000"):
            reply = await fleet.http.get("/ui/state", headers={"host": host})
            assert reply.status_code == 200, host
        for headers in (
            {"host": "127.0.0.1.example.org"},
            {"origin": "https://example.org"},  # a script of another page in the same browser
            {"host": "example.org"},  # a name that was pointed at this host
            {"host": "example.org:no"},
            {"host": "127.0.0.1:8000@example.org"},
            {"host": "["},
            {"x-forwarded-for": "10.0.0.7"},  # somebody behind a proxy on this host
        ):
            reply = await fleet.http.get("/ui/state", headers=headers)
            assert reply.status_code == 403, headers
            assert "on the router's host" in reply.json()["error"]["message"]


async def test_the_name_in_a_certificate_lets_a_browser_in(tmp_path):
    authority = Authority(tmp_path)
    files = authority.issue("router")
    fields = {"tls_cert": files.cert, "tls_key": files.key, "tls_ca": files.ca}
    async with running_fleet(StubNode(), admin_names=("operator",), **fields) as fleet:
        for name, code in (("operator", 200), ("user", 403)):
            shown_to = ssl.create_default_context(cafile=str(files.ca))
            own = authority.issue(name)
            shown_to.load_cert_chain(own.cert, own.key)
            async with httpx.AsyncClient(verify=shown_to, trust_env=False) as client:
                url = fleet.http_url.replace("http:", "https:")
                assert (await client.get(f"{url}/ui/state")).status_code == code


async def test_a_hundred_who_look_cost_no_more_than_a_few(monkeypatch):
    read, count = Overview.read, []

    def counted(self):
        count.append(self)
        return read(self)

    monkeypatch.setattr(Overview, "read", counted)
    async with running_fleet(StubNode()) as fleet:
        monkeypatch.setattr("router.ui_page.FRESH", 60)
        replies = await asyncio.gather(*(fleet.http.get("/ui/state") for _ in range(100)))
        assert {reply.status_code for reply in replies} == {200}
        assert len(count) == 1
        monkeypatch.setattr("router.ui_page.FRESH", 0.05)
        await asyncio.sleep(0.1)
        assert (await fleet.http.get("/ui/state")).json()["nodes"]
        assert len(count) == 2
