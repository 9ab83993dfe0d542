"""Drafts, records and checks that several tests share."""
