"""What is asked for, before any weights are loaded."""
