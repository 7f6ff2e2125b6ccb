"""Loading of checkpoints, and the tiny ones that ship with the project."""
