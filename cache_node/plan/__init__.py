"""What a node will have room for, before it is started: no torch, no weights."""
