"""`python -m kvmesh.cli` is `kvmesh`."""

from kvmesh.cli.main import main

main()
