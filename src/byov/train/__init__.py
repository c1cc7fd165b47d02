"""Training from a recipe: the loop, its configuration, optimizers, checkpoints, and supervised tasks."""


class Diverged(Exception):
    """Training has diverged and cannot recover; the message says what to try."""


class Stopped(Exception):
    """A signal stopped the run: it is saved, nothing else should be started, and the message says where it is."""
