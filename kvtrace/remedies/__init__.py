"""What mends scales, as steps to take in order: each command runs as it is printed."""
