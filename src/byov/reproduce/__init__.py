"""Every table and figure of the two papers, one file each; a file in this folder registers itself when imported."""
