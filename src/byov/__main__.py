"""`python -m byov` is `byov`."""

import sys


def main() -> None:
    """Run the command, or say in one sentence that what it is written with is not installed."""
    try:
        from byov.cli import main
    except ModuleNotFoundError as error:
        print(f"byov: the command needs {error.name}: pip install torch-byov installs all it needs.", file=sys.stderr)
        sys.exit(2)
    main()


if __name__ == "__main__":
    main()
