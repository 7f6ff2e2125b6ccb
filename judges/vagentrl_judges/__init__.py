"""Judges that ship with vagentrl: one per file, with its prompt in a text file beside it."""
