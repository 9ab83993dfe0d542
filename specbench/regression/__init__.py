"""Has it got worse: a run against a baseline, and a history of runs."""
