"""Which node holds which prefix: block keys, the router's mirror, the feeds that fill it, the node's publishers."""
