"""How many answers a variant loses, paired with BF16 on the same prompts, beside what BF16 loses to noise."""
