"""Rules over one artifact: a file a rule, what they look at, and the audit that asks them."""
