"""What the command does, one file per verb; `byov.cli` only puts them together."""
