"""The `kvmesh` command. Its import loads neither torch nor grpc; a command loads what it needs."""
