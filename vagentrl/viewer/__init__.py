"""Episodes to look at."""
