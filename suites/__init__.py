"""One card (TOML) a suite, and the embedded prompts: data, not code."""
