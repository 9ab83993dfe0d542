"""Text to train on: rows, formats, evaluation sets, tokens, batches."""
