"""A client that has nothing of ours but the .proto files: stubs made by grpc-tools elsewhere."""

import asyncio
import subprocess
import sys

from tests.router.fleet_fixture import running_fleet
from tests.router.node_process import ROOT
from tests.router.stub_node import StubNode

CLIENT = """
import sys
import grpc
from acme.llm.v1 import generate_pb2, inference_pb2, inference_pb2_grpc

with grpc.insecure_channel(sys.argv[1]) as channel:
    stub = inference_pb2_grpc.InferenceStub(channel)
    reply = stub.Tokenize(inference_pb2.TokenizeRequest(text="hi"))
    request = generate_pb2.GenerateRequest(
        token_ids=reply.token_ids, sampling=generate_pb2.SamplingParams(max_tokens=4)
    )
    frames = list(stub.Generate(request))
    print("".join(delta.text for frame in frames for delta in frame.deltas))
    print(frames[0].route.node, frames[-1].summary.usage.completion_tokens)
    try:
        list(stub.Generate(generate_pb2.GenerateRequest(model="other", text="x")))
    except grpc.RpcError as error:
        print(error.code().name, error.details().partition(":")[0])
print([name for name in sys.modules if name.startswith("kvmesh")])
"""


def make_stubs(directory):
    """Our protos under another import path; the services keep their name on the wire."""
    protos = directory / "protos/acme/llm/v1"
    protos.mkdir(parents=True)
    for path in (ROOT / "protos/kvmesh/v1").glob("*.proto"):
        text = path.read_text().replace('import "kvmesh/v1/', 'import "acme/llm/v1/')
        (protos / path.name).write_text(text)
    command = [
        sys.executable, "-m", "grpc_tools.protoc", f"-I{directory / 'protos'}",
        f"--python_out={directory}", f"--grpc_python_out={directory}",
    ]  # fmt: skip
    subprocess.run([*command, *map(str, protos.glob("*.proto"))], check=True)


async def test_a_client_made_from_the_protos_alone(tmp_path):
    await asyncio.to_thread(make_stubs, tmp_path)
    async with running_fleet(StubNode("node-0")) as fleet:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CLIENT, fleet.target, cwd=tmp_path, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await asyncio.wait_for(child.communicate(), 30)
    assert out.decode().splitlines() == [
        "hihi",
        "node-0 4",
        "INVALID_ARGUMENT model",
        "[]",
    ]
