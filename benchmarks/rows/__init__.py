"""What `all.py` measures: one file per subject. A measurement is a function of a `Setting` that gives plain numbers."""
