"""One request id from the HTTP header to the log lines of router and node, try by try."""

import signal

import pytest

from tests.router.logged_fleet import logged_fleet
from tests.router.process_fleet import until

BODY = {"prompt": "p" * 40, "temperature": 0, "ignore_eos": True}


@pytest.fixture
def logging(monkeypatch):
    monkeypatch.setenv("KVMESH_LOG_REQUESTS", "true")


async def test_the_clients_id_is_in_every_log_line_of_its_request(logging, tmp_path):
    async with logged_fleet(tmp_path, connect_timeout=2, node_silence=30) as fleet:
        http, nodes = fleet.router.http, fleet.nodes

        async def ask(name, **fields):
            headers = {"x-request-id": name}
            body = {**BODY, "max_tokens": 4, **fields}
            reply = await http.post("/v1/completions", json=body, headers=headers)
            assert (reply.status_code, reply.headers["x-request-id"]) == (200, name)
            return await fleet.told_of(name)

        async def node_lines(name, *attempts):
            """The attempts of the lines of both nodes."""

            async def there():
                lines = [line for node in nodes for line in node.told(name)]
                return sorted(line["attempt"] for line in lines) == list(attempts)

            await until(there)

        line = await ask("plain-1")
        assert (line["component"], line["code"]) == ("router", "OK")
        assert (line["attempt"], line["resumes"]) == (1, 0)
        await node_lines("plain-1", 1)
        (told,) = (told for node in nodes for told in node.told("plain-1"))
        assert (told["component"], told["name"]) == ("node", line["node"])

        # A node that does not take a request: the next one does, as attempt 2.
        silent = nodes[0] if line["node"] == "node-1" else nodes[1]
        silent.signal(signal.SIGSTOP)
        line = await ask("retried-1")
        assert (line["attempt"], line["code"]) == (2, "OK")
        await node_lines("retried-1", 2)
        silent.signal(signal.SIGCONT)
        await until(lambda: fleet.router.up("node-0", "node-1"))

        # A node that is killed in mid-stream: another goes on.
        headers = {"x-request-id": "resumed-1"}
        body = {**BODY, "max_tokens": 1500, "stream": True}
        async with http.stream("POST", "/v1/completions", json=body, headers=headers) as reply:
            lost = reply.headers["x-kvmesh-node"]
            events = reply.aiter_lines()
            await anext(events)
            next(node for node in nodes if node.child.name == lost).child.kill()
            assert [line async for line in events if line][-1] == "data: [DONE]"
        line = await fleet.told_of("resumed-1")
        assert (line["node"], line["attempt"], line["resumes"]) == (lost, 1, 1)
        (went_on,) = (each for each in fleet.told("resumed-1") if each["event"] == "resumed")
        assert (went_on["lost"], went_on["attempt"]) == (lost, 2)
        await node_lines("resumed-1", 2)
