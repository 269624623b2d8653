"""The kernels in Triton, for GPUs. `kernels` itself imports nothing of this package, so that it
runs where triton is not installed.
"""
