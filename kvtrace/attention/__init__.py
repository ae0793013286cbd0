"""What an error in K, V or Q does to attention: replayed from captured queries, candidate by candidate."""
