"""What tests share: traces, runs and checkpoints made by hand, oracles, and commands run as a user would."""
