"""``python -m vagentrl``."""

from vagentrl.cli import main

if __name__ == "__main__":
    main()
