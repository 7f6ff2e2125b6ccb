"""Navigation: find a named object in furnished rooms that are seen in first person."""
