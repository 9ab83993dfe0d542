"""What is stored of a run, and how it gets to disk and back."""
