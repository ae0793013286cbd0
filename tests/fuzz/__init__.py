"""Files from strangers, their checksums made anew: a command ends as documented."""
