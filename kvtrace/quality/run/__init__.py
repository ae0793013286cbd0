"""Variants of one model served offline on the same prompts: what they answered, and how probable it was."""
