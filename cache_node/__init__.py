"""A cache node: a paged KV pool, its block manager and scheduler, the model, and the gRPC service
over them.
"""
