"""Which algorithm, for which problem: every algorithm in every standard scenario that admits it.

``scenario`` says what a scenario is, ``convex``, ``graphs``, ``links``, ``trust``, ``labels`` and
``others`` declare them; ``methods`` says how an algorithm is made and tuned in one, or why it does
not run there; ``running`` computes and keeps results, ``report`` and ``page`` write them up.
"""
