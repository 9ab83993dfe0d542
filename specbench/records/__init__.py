"""What is stored of a run, and how it is written and read."""
