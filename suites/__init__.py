"""One card (TOML) per suite, and the embedded prompts: data, not code."""
