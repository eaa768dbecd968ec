"""The entry point: runs one command, and turns errors into one sentence and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.core import TyperGroup

from switchyard import __version__
from switchyard.cli import operating, reading, swaps
from switchyard.cli.options import read_settings
from switchyard.cli.output import print_json
from switchyard.errors import SwitchyardError

COMMANDS = (
    *(operating.up, operating.down, reading.status, reading.health, reading.metrics),
    *(swaps.swap, swaps.plan, swaps.rollback, swaps.retire, swaps.backfill),
    *(reading.logs, reading.history, reading.tail, reading.topics),
    *(operating.audit, operating.forget, operating.maintain, operating.demo, operating.doctor),
)


def build_app() -> TyperGroup:
    # Without markup a help text needs no rich, which takes longer to import than all the rest of it.
    app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None)
    app.callback(context_settings={"help_option_names": ["--help", "-h"], "max_content_width": 120})(switchyard)
    for command in COMMANDS:
        app.command()(command)
    return typer.main.get_group(app)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"switchyard {__version__}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")]


def switchyard(version: Version = False) -> None:
    """A live join of two Kafka topics in a Delta table, changed while it runs."""


class WithoutPandas:
    """Makes `import pandas` fail. Arrow does it for the first value that it is given, and goes on without.

    No command has an object of pandas, and to import it takes longer than most commands.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("the command line does without pandas", name=name)


def main(arguments: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else list(arguments)
    if arguments is None:
        sys.meta_path.insert(0, WithoutPandas)
    try:
        return run(given)
    except SwitchyardError as error:
        if "--json" in given:
            print_json({"error": str(error)})
        print(f"switchyard: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 0


def run(arguments: list[str]) -> int:
    app = build_app()
    try:
        # typer's own main would end with 1 when the reader of a pipe, such as `head`, has seen enough.
        with app.make_context("switchyard", arguments) as context:
            return app.invoke(context) or 0
    except typer.Exit as ended:
        return ended.exit_code
    except typer.TyperException as error:
        error.show()  # type: ignore[attr-defined]
        raise SystemExit(error.exit_code) from None
    except (SwitchyardError, BrokenPipeError):
        raise
    except Exception as error:
        # Show one sentence only: the stack goes to a log, because its text may quote values of records.
        from switchyard.local.unexpected_errors import explain_unexpected

        raise explain_unexpected(read_settings().workspace, error) from None


if __name__ == "__main__":
    sys.exit(main())
