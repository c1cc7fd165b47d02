"""Training from a recipe: the loop, its configuration, optimizers, checkpoints, and the tasks that have labels."""


class Diverged(Exception):
    """Training went wrong in a way that going on would not mend; the message says what to try."""


class Stopped(Exception):
    """A signal asked for the end: the run is saved, nothing else should be begun, and the message says where it is."""
