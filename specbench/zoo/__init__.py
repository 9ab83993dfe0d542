"""The embedded tiny models, as package data: one folder a model, each with its card."""
