"""One file a subcommand, thin: arguments in, the work elsewhere, the result printed. Heavy imports inside."""
