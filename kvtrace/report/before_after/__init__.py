"""Two deployments side by side: what changed between them, never pooled."""
