"""The router: admission, choice of a node, dispatch, and the gRPC and OpenAI-compatible fronts.
Never imports torch.
"""
