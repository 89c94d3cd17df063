"""Which algorithm, for which problem: every algorithm in every standard scenario that admits it.

``scenario`` defines the class; ``convex``, ``graphs``, ``links``, ``trust``, ``labels``,
``others``, ``clock``, ``communication`` and ``hierarchy`` declare the scenarios; ``methods`` builds
and tunes an algorithm for a scenario, or gives the reason why it does not run there; ``running``
computes and stores results, ``report`` and ``page`` write the pages.
"""
