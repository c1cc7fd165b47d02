"""Training from a recipe: the loop, its configuration, optimizers, checkpoints, and the tasks that have labels."""


class Diverged(Exception):
    """Training went wrong in a way that going on would not mend; the message says what to try."""
