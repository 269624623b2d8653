"""The router: admission, choice of a node, dispatch, and its two fronts. Never imports torch."""
