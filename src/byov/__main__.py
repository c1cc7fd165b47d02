"""`python -m byov` is `byov`."""

import sys


def main() -> None:
    """Run the command, or say in one sentence which dependency is missing."""
    try:
        from byov.cli import main
    except ModuleNotFoundError as error:
        print(f"byov: this needs {error.name}: pip install torch-byov installs all dependencies.", file=sys.stderr)
        sys.exit(2)
    main()


if __name__ == "__main__":
    main()
