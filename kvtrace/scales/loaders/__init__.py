"""How engines turn stored scales into effective ones: one file a method, each applied layer by layer."""
