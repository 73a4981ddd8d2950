"""`python -m server` is `headrace`."""

from server.cli import main

if __name__ == "__main__":
    main()
