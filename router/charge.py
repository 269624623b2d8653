"""What a request costs its tenant: estimated when it comes, corrected when it has gone."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvmesh.v1 import generate_pb2 as pb
from router.local_limits import LocalLimits
from router.request_size import RequestSize
from router.tenants import Tenant

if TYPE_CHECKING:
    from router.shared_limits import Held, SharedLimits


class TokenAccount:
    """Takes tokens from this router's account, then from that of all routers if there is one."""

    def __init__(self, local: LocalLimits, shared: "SharedLimits | None") -> None:
        self._local = local
        self._shared = shared

    async def take(self, tenant: Tenant, size: RequestSize) -> "Charge":
        """As many as a request of this size is expected to use; the caller closes the charge.

        Raises RESOURCE_EXHAUSTED for more than the tenant may have now.
        """
        expected = self._local.expected_tokens(tenant, size)
        self._local.take_tokens(tenant, expected)
        charge = Charge(self, tenant, size, expected)
        try:
            if self._shared is not None:
                charge.held = await self._shared.take(tenant, expected)
        except BaseException:
            charge.close()
            raise
        return charge

    def settle(self, charge: "Charge") -> None:
        correction = charge.used - charge.expected
        self._local.correct(charge.tenant, correction)
        if self._shared is not None and charge.held is not None:
            self._shared.give(charge.held, correction)
        if charge.complete:
            output = charge.used - charge.size.prompt_tokens
            self._local.learn(charge.tenant, output / charge.size.samples)


@dataclass(slots=True, eq=False)
class Charge:
    """`expected` tokens were taken, `used` are paid in the end: none, unless a node has worked."""

    account: TokenAccount
    tenant: Tenant
    size: RequestSize
    expected: int
    held: "Held | None" = None
    used: int = 0
    waited: float = 0.0  # seconds, for room on a node
    complete: bool = False
    closed: bool = False

    def use(self, usage: pb.Usage, frames: int) -> None:
        """A node has worked on the request: by its account, or while there is none by the prompt
        and the frames that came, a token in each for each sample.
        """
        self.complete = usage.prompt_tokens > 0
        output = usage.completion_tokens if self.complete else frames * self.size.samples
        self.used = self.size.prompt_tokens + output

    def close(self) -> None:
        """What was not used goes back. Idempotent."""
        if not self.closed:
            self.closed = True
            self.account.settle(self)
