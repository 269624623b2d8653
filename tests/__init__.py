"""The tests; a package, so that they find their helpers by name whatever else is installed."""
