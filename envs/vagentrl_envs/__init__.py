"""Environments, one per file, named in a configuration by their class path."""
