"""Speed comparisons, measured side by side in one run; nothing is asserted."""
