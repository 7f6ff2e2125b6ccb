"""A league of adversaries that try to be paid for claims without looking at the state."""
