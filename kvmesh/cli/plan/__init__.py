"""`kvmesh plan`: what fits, before anything is started."""
