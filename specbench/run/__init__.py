"""From a plan to records, and what else is measured with bound drafters."""
