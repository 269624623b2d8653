"""What tests ask of a project's fleet."""

import httpx

from tests.e2e.serving import poll

PREFIX = "You are the guide of a museum of clocks, and you know each of them by heart. " * 12


def chat(project, question):
    """The answer to a question behind PREFIX, over HTTP."""
    with httpx.Client(verify=project.tls_context(), timeout=120, trust_env=False) as client:
        reply = client.post(
            f"{project.http_url}/v1/chat/completions",
            json={"model": "", "messages": messages(question), "max_tokens": 8},
        )
    assert reply.status_code == 200, reply.text
    return reply.json()


def messages(question):
    return [{"role": "system", "content": PREFIX}, {"role": "user", "content": question}]


def cached(reply):
    """Tokens, as usage says."""
    return reply["usage"]["prompt_tokens_details"]["cached_tokens"]


def all_up(project, count):
    return project.healths().count("UP") == count


def indexed(project):
    """Whether the router knows of cached blocks."""
    with project.client() as client:
        return any(node.indexed_blocks > 10 for node in client.list_nodes())


def check_that_the_second_request_hits(project):
    """Over HTTP, then over gRPC. Of a fleet that has not been asked yet."""
    assert cached(chat(project, "What is the oldest?")) == 0
    poll(lambda: indexed(project), 30)
    assert cached(chat(project, "What is the newest?")) > 200
    with project.client() as client:
        done = client.generate(messages=messages("Which one strikes?"), max_tokens=4).result()
    assert done.usage.cached.gpu > 200


def scraped(project):
    """How many processes of each job answer Prometheus."""
    url = f"{project.prometheus_url}/api/v1/query"
    found = httpx.get(url, params={"query": "up == 1"}, trust_env=False).json()["data"]["result"]
    jobs = [each["metric"]["job"] for each in found]
    return jobs.count("router"), jobs.count("cache-node")
