"""What drafters share: checkpoints, layers, adaptive length, candidates."""
