"""The kernels in C++, compiled on first use: see `build`."""
