"""The load generator: requests at planned times, what became of them, and reports of it."""
