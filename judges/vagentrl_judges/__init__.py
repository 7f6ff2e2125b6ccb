"""Judges that ship with vagentrl: one per file, its prompt in a text file beside it."""
