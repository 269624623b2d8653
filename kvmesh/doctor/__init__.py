"""`kvmesh doctor`: reads what a fleet measures, and says which flag to change."""
