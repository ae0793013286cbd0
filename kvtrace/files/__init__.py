"""Files and directories that are there whole or not at all, and JSON that has one reading."""
