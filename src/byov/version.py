"""The version, for the package, the command and the wheel."""

__version__ = "0.1.0"
