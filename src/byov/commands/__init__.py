"""The commands of `byov`, one file per verb; `byov.cli` assembles them."""
