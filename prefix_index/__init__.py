"""Which node holds which prefix: block keys, the router's mirror, its feeds, the publishers."""
