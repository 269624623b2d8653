"""From a dispatched message to a request: every check that the node makes as the authority."""

from collections.abc import Callable
from dataclasses import dataclass

from cache_node.key_chain import KeyChain
from cache_node.resume import read_progress
from cache_node.sampling import SamplingParams
from cache_node.sequence import Request
from kvmesh import validation
from kvmesh.errors import Code, RequestError, invalid, unimplemented
from kvmesh.packing import Tokens, all_below, unpacked
from kvmesh.v1 import cache_node_pb2, generate_pb2
from prefix_index.keys import root_key

# Copied as they are when the client set them; SamplingParams has the defaults.
_OPTIONAL = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "min_tokens",
    "n",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logprobs",
    "prompt_logprobs",
)


@dataclass(frozen=True, slots=True)
class Admission:
    """What the checks need to know of the node. `clock` is the engine's, in seconds."""

    info: cache_node_pb2.NodeInfo
    prefix_caching: bool
    clock: Callable[[], float]

    def request(self, key: str, message: cache_node_pb2.NodeGenerateRequest) -> Request:
        """The request that `message` describes, under the id `key`.

        Raises RequestError: INVALID_ARGUMENT and UNIMPLEMENTED naming the field,
        FAILED_PRECONDITION for another epoch.
        """
        info = self.info
        self._check_dispatch(message)
        tokens = self._prompt(message)
        validation.check_sampling(message.sampling, info.vocab_size)
        most = validation.resolve_max_tokens(message.sampling, len(tokens), info.max_model_len)
        params = sampling_params(message.sampling, most)
        self._check_size(len(tokens), params)
        root = root_key(info.key_scheme, info.model_fingerprint, message.adapter, message.salt)
        return Request(
            id=key,
            prompt=tokens,
            params=params,
            eos_token_ids=frozenset(info.eos_token_ids),
            keys=KeyChain(root, info.key_scheme.block_size),
            arrival=self.clock(),
            priority=message.priority,
            use_cache=self.prefix_caching and message.cache != generate_pb2.CACHE_MODE_OFF,
            resumed=read_progress(message.resume, params, info.vocab_size),
        )

    def _check_dispatch(self, message: cache_node_pb2.NodeGenerateRequest) -> None:
        validation.check_request_id(message.request_id)
        validation.check_priority(message.priority)
        validation.check_cache_mode(message.cache)
        if message.epoch not in (0, self.info.epoch):
            raise RequestError(
                Code.FAILED_PRECONDITION,
                f"epoch: this node lives in {self.info.epoch}, not in {message.epoch}",
            )
        if message.adapter:
            raise unimplemented("adapter", "no adapters are served by this version, leave it empty")

    def _prompt(self, message: cache_node_pb2.NodeGenerateRequest) -> "Tokens[int]":
        try:
            tokens = unpacked(message.token_ids)
        except ValueError:
            size = len(message.token_ids)
            problem = f"must be packed uint32, a multiple of 4 bytes, has {size}"
            raise invalid("token_ids", problem) from None
        validation.check_prompt_length(len(tokens), self.info.max_model_len)
        if not all_below(message.token_ids, self.info.vocab_size):
            validation.check_token_ids("token_ids", tokens, self.info.vocab_size)
        return tokens

    def _check_size(self, prompt_tokens: int, params: SamplingParams) -> None:
        """One sample always fits a node that has started; many may not."""
        if params.best_of > self.info.max_num_seqs:
            most = self.info.max_num_seqs
            raise invalid("n", f"this node runs at most {most} samples, asked for {params.best_of}")
        size = self.info.key_scheme.block_size
        longest = -(-(prompt_tokens + params.max_tokens) // size)
        needed = longest + (params.best_of - 1) * (longest - prompt_tokens // size)
        if needed > self.info.num_blocks:
            raise invalid(
                "n",
                f"{params.best_of} samples of {params.max_tokens} tokens need {needed} blocks, "
                f"the node has {self.info.num_blocks}; ask for fewer, or for fewer tokens",
            )


def sampling_params(sampling: generate_pb2.SamplingParams, max_tokens: int) -> SamplingParams:
    """The checked message as plain data."""
    given = {name: getattr(sampling, name) for name in _OPTIONAL if sampling.HasField(name)}  # type: ignore[arg-type]
    best_of = sampling.best_of if sampling.HasField("best_of") else given.get("n", 1)
    return SamplingParams(
        **given,
        max_tokens=max_tokens,
        best_of=best_of,
        logit_bias=dict(sampling.logit_bias),
        stop=tuple(sampling.stop),
        stop_token_ids=tuple(sampling.stop_token_ids),
        ignore_eos=sampling.ignore_eos,
    )
