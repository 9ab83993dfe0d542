"""Turn a plan into records, and measure what else needs bound drafters."""
