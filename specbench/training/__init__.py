"""Training of the embedded models and of drafts: data, one loop, recipes."""
