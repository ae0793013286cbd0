"""`python -m kvtrace`, and the `kvtrace` command: signals are minded before anything large is imported."""

from kvtrace.signals import end_on_signals, try_again_after_finalizers


def main() -> None:
    """Run the command line."""
    end_on_signals()
    try_again_after_finalizers()
    from kvtrace.cli import main as run

    run()


if __name__ == "__main__":
    main()
