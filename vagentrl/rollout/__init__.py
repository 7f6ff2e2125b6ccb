"""Playing episodes with the model, and laying them out as batches."""
