"""What each tenant uses through this router, against its limits."""

from collections.abc import Callable
from dataclasses import dataclass

from router.refused_error import RefusedError, refused
from router.request_size import RequestSize
from router.tenants import Tenant, TenantLimits
from router.token_bucket import TokenBucket

CONCURRENCY_RETRY = 1.0  # seconds: when one of its own requests ends is the tenant's to know
FIRST_GUESS = 256.0  # tokens of an output, until a tenant has had some
LEARNING = 0.1  # weight of the newest output in the mean


def over_limit(tenant: Tenant, limit: str, delay: float) -> RefusedError:
    """For a limit of the tenant, by its field's name."""
    bound = getattr(tenant.limits, limit)
    message = f"{limit}: tenant {tenant.name} is at its limit of {bound:g}"
    return refused(limit, f"{message}, come back in {delay:.2g} s", delay)


@dataclass(slots=True)
class _Account:
    limits: TenantLimits
    requests: TokenBucket | None = None
    tokens: TokenBucket | None = None
    running: int = 0
    mean_output: float = FIRST_GUESS


class LocalLimits:
    """One account a tenant, kept when its limits change. `clock` is in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._accounts: dict[str, _Account] = {}

    def begin(self, tenant: Tenant, count: int = 1) -> None:
        """`count` requests, until `end`. Raises RESOURCE_EXHAUSTED when that is more than the
        tenant may have now.
        """
        account = self._account(tenant)
        self._check_concurrency(tenant, account, count)
        self._take(tenant, "requests_per_second", account.requests, count)
        account.running += count

    def end(self, tenant: Tenant, count: int = 1) -> None:
        self._accounts[tenant.name].running -= count

    def take_tokens(self, tenant: Tenant, tokens: int) -> None:
        """Raises RESOURCE_EXHAUSTED when that is more than the tenant may have now."""
        self._take(tenant, "tokens_per_second", self._account(tenant).tokens, tokens)

    def correct(self, tenant: Tenant, tokens: int) -> None:
        """So many more were used than had been taken; a negative number are given back."""
        bucket = self._account(tenant).tokens
        if bucket is not None:
            bucket.take(tokens, self._clock())

    def expected_tokens(self, tenant: Tenant, size: RequestSize) -> int:
        """Prompt, and outputs of the length that this tenant's have had of late: what clients allow
        for is mostly far more than what comes.
        """
        output = min(size.max_tokens, self._account(tenant).mean_output)
        return size.prompt_tokens + round(size.samples * output)

    def learn(self, tenant: Tenant, output_tokens: float) -> None:
        """One output had so many tokens."""
        account = self._account(tenant)
        account.mean_output += LEARNING * (output_tokens - account.mean_output)

    @property
    def idle(self) -> bool:
        return not any(account.running for account in self._accounts.values())

    def _check_concurrency(self, tenant: Tenant, account: _Account, count: int) -> None:
        most = tenant.limits.concurrency
        if most is not None and account.running + count > most:
            raise over_limit(tenant, "concurrency", CONCURRENCY_RETRY)

    def _take(self, tenant: Tenant, limit: str, bucket: TokenBucket | None, amount: int) -> None:
        if bucket is None:
            return
        now = self._clock()
        if delay := bucket.delay(amount, now):
            raise over_limit(tenant, limit, delay)
        bucket.take(amount, now)

    def _account(self, tenant: Tenant) -> _Account:
        account = self._accounts.get(tenant.name)
        if account is None:
            account = self._accounts[tenant.name] = _Account(TenantLimits())
        if account.limits is not tenant.limits:
            limits, now = tenant.limits, self._clock()
            burst = limits.burst_seconds
            account.limits = limits
            account.requests = _tuned(account.requests, limits.requests_per_second, burst, now)
            account.tokens = _tuned(account.tokens, limits.tokens_per_second, burst, now)
        return account


def _tuned(
    bucket: TokenBucket | None, rate: float | None, burst_seconds: float, now: float
) -> TokenBucket | None:
    if rate is None:
        return None
    burst = max(1.0, rate * burst_seconds)
    if bucket is None:
        return TokenBucket(rate, burst, now)
    bucket.retune(rate, burst, now)
    return bucket
