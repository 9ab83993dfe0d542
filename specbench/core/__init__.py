"""The decoding core. It needs torch only, and it reads no clock, no files and no tables."""
