"""Other ways to serve the same requests with the same model and kernels. One a file."""
