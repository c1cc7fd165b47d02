"""The one way a run ends badly that the user can mend."""


class Diverged(Exception):
    """Training went wrong in a way that going on would not mend; the message says what to try."""
