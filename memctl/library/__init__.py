"""memctl for programs: what its commands do, as coroutines.  ``memctl`` hands it all out by name.

Every error is one of ``memctl.errors``.  What fails for one memory is no error: the others are
done, and the result names it in ``failures``.
"""
