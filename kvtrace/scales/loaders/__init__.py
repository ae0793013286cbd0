"""How loaders turn stored scales into effective ones: one file a method, each applied layer by layer."""
