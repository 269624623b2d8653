"""Generated from protos/kvmesh/v1 by `make protos`."""
