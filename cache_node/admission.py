"""From a dispatched message to a sequence: every check that the node makes as the authority."""

from collections.abc import Callable
from dataclasses import dataclass

from cache_node.key_chain import KeyChain
from cache_node.sampling import SamplingParams
from cache_node.sequence import Sequence
from kvmesh import validation
from kvmesh.errors import Code, RequestError, invalid, unimplemented
from kvmesh.packing import unpack_tokens
from kvmesh.v1 import cache_node_pb2, generate_pb2
from prefix_index.keys import root_key


@dataclass(frozen=True, slots=True)
class Admission:
    """What the checks need to know of the node. `clock` is the engine's, in seconds."""

    info: cache_node_pb2.NodeInfo
    prefix_caching: bool
    clock: Callable[[], float]

    def sequence(self, key: str, request: cache_node_pb2.NodeGenerateRequest) -> Sequence:
        """The sequence that `request` asks for, under the id `key`.

        Raises RequestError: INVALID_ARGUMENT and UNIMPLEMENTED naming the field,
        FAILED_PRECONDITION for another epoch.
        """
        info = self.info
        self._check_dispatch(request)
        tokens = self._prompt(request)
        validation.check_sampling(request.sampling, info.vocab_size)
        max_tokens = validation.resolve_max_tokens(
            request.sampling, len(tokens), info.max_model_len
        )
        root = root_key(info.key_scheme, info.model_fingerprint, request.adapter, request.salt)
        return Sequence(
            request_id=key,
            tokens=tokens,
            prompt_tokens=len(tokens),
            params=_params(request.sampling, max_tokens),
            eos_token_ids=frozenset(info.eos_token_ids),
            keys=KeyChain(root, info.key_scheme.block_size),
            arrival=self.clock(),
            priority=request.priority,
            use_cache=self.prefix_caching and request.cache != generate_pb2.CACHE_MODE_OFF,
        )

    def _check_dispatch(self, request: cache_node_pb2.NodeGenerateRequest) -> None:
        validation.check_request_id(request.request_id)
        validation.check_priority(request.priority)
        if request.epoch not in (0, self.info.epoch):
            raise RequestError(
                Code.FAILED_PRECONDITION,
                f"epoch: this node lives in {self.info.epoch}, not in {request.epoch}",
            )
        if request.adapter:
            raise unimplemented("adapter", "no adapters are served by this version, leave it empty")
        if request.resume:
            raise unimplemented("resume", "not served by this version, leave it empty")

    def _prompt(self, request: cache_node_pb2.NodeGenerateRequest) -> list[int]:
        try:
            tokens = unpack_tokens(request.token_ids)
        except ValueError:
            problem = f"must be packed uint32, a multiple of 4 bytes, has {len(request.token_ids)}"
            raise invalid("token_ids", problem) from None
        validation.check_prompt_length(len(tokens), self.info.max_model_len)
        validation.check_token_ids("token_ids", tokens, self.info.vocab_size)
        return tokens


def _params(sampling: generate_pb2.SamplingParams, max_tokens: int) -> SamplingParams:
    defaults = SamplingParams()
    given = {
        field: getattr(sampling, field)
        for field in ("temperature", "top_k", "top_p", "min_p", "seed", "min_tokens")
        if sampling.HasField(field)
    }
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=given.get("temperature", defaults.temperature),
        top_k=given.get("top_k", defaults.top_k),
        top_p=given.get("top_p", defaults.top_p),
        min_p=given.get("min_p", defaults.min_p),
        seed=given.get("seed", defaults.seed),
        min_tokens=given.get("min_tokens", defaults.min_tokens),
        stop=tuple(sampling.stop),
        stop_token_ids=tuple(sampling.stop_token_ids),
        ignore_eos=sampling.ignore_eos,
    )
