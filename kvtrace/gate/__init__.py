"""Policy checks over a run: within, breached or not enough coverage per segment, and the envelope as a sentence."""
