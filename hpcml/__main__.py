"""Where ``hpcml`` and ``python -m hpcml`` begin: the command line is `hpcml.cli.main`."""

from hpcml.search_path import standard_library_first


def main() -> None:
    """Run the command line."""
    standard_library_first()
    from hpcml.cli.main import main as run  # noqa: PLC0415 - not before it is known where modules are found

    run()


if __name__ == "__main__":
    main()
