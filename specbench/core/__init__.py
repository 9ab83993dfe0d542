"""The decoding core: torch only; no clock, no files, no tables."""
