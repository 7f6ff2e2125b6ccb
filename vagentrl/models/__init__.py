"""Models: loading checkpoints, their heads and adapters, and the tiny models that ship here."""
