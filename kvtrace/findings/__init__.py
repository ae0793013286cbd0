"""What is wrong and who is to blame: rules over an artifact, rules over a run, and one ranked verdict."""
