"""Pictures of episodes, for people to look at."""
