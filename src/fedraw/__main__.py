"""Lets `python -m fedraw` run the command `fedraw`."""

from fedraw.cli.main import main

if __name__ == "__main__":
    main()
