"""``python -m hpcml`` is the command line."""

from hpcml.cli.start import main

if __name__ == "__main__":
    main()
