"""What keeps a mirror up to date, as the router's watcher sees it."""

from typing import Protocol


class Feed(Protocol):
    """Fills a Mirror with the nodes' block events.

    The watcher owns each node's state stream, and tells the feed which nodes live and in which
    epoch. A feed never raises into it: what goes wrong shows in `Mirror.mode` and in the log.
    """

    @property
    def healthy(self) -> bool:
        """Whether events come in. While they do not, another feed may stand in."""
        ...

    def track(self, node: str, epoch: int) -> None:
        """The node lives, in this epoch; entries of another one are dropped at once. Idempotent."""
        ...

    def untrack(self, node: str) -> None:
        """The node is gone, its entries with it. Unknown nodes are fine."""
        ...
