"""What each algorithm's paper promises first, judged: a claim for every registered algorithm."""
