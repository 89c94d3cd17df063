"""The first promise of each algorithm's paper, judged: a claim for every registered algorithm."""
