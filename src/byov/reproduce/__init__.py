"""The tables and figures of the two papers; each file in this folder registers its experiments when imported."""
