"""Training the embedded target, and having it write responses."""
