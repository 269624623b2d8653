"""KV writes and paged attention: each kernel beside its reference. Imports without triton."""
