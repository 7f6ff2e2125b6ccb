"""Plays episodes with the policy and collates them into batches."""
