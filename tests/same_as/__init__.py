"""`make same-as BASE=<commit>`: what the command line prints and writes, against an earlier commit's."""
