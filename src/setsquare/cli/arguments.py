"""The command line: arguments of all commands, and their exit codes."""

from __future__ import annotations

import os
import re
import sys
import traceback
from pathlib import Path
from typing import Annotated

from cyclopts import App, CycloptsError, MissingArgumentError, Parameter, UnusedCliTokensError

from setsquare import __version__
from setsquare.cli.options import AuditedColumns, Fitting, Options, Reading
from setsquare.cli.surroundings import (
    check_outputs,
    check_surroundings,
    refuse_renamed,
    termination_as_interrupt,
)
from setsquare.cli.terminal import clean, phrase
from setsquare.cli.tradeoff_options import TradeoffFitting, TradeoffOptions
from setsquare.errors import InputError, SetsquareError, excerpt
from setsquare.notes import message

app = App(
    name="setsquare",
    help="Audit predictions for a dependence on protected columns, and fit models that provably do not use them.",
    help_epilogue=(
        "Exit codes: 0 fine, 1 a leak (with --fail-on-leak) or an alarm (with --fail-on-alarm), 2 bad input, 130 "
        "interrupted, 143 terminated."
    ),
    version=__version__,
    default_parameter=Parameter(negative=(), show_default=lambda value: value or None),
    suppress_keyboard_interrupt=False,
)
app.register_install_completion_command(help="Install completion for the shell that runs this.")
datasets = app.command(App(name="data", help="Data sets that the library can load."))

#: A CSV, Parquet, Feather or Excel file; "-" is standard input.
File = Annotated[str, Parameter(allow_leading_hyphen=True)]
Shared = Annotated[Options, Parameter(name="*")]
Columns = Annotated[AuditedColumns, Parameter(name="*")]
DEFAULTS, TRADEOFF_DEFAULTS = Options(), TradeoffOptions()
ReadingOptions = Annotated[Reading, Parameter(name="*")]


@app.command
def audit(
    file: File, /, *, predictions: list[str], columns: Columns, outcome: str | None = None, options: Shared = DEFAULTS
) -> int:
    """Audit predictions: whether they depend on protected columns, how strongly, and how certain that is.

    Parameters
    ----------
    file
        CSV, Parquet, Feather or Excel; "-" is standard input.
    predictions
        Column of predictions; several, comma-separated, for the probabilities of classes.
    outcome
        Outcome column; with it the audit also reports accuracy and calibration.
    """
    from setsquare.cli import audit as auditing

    check_outputs(options, file)
    return auditing.audit(file, predictions, outcome, columns, options)


@app.command
def compare(
    file: File, /, *, predictions: list[str], columns: Columns, outcome: str, options: Shared = DEFAULTS
) -> int:
    """Compare several predictions of one outcome: whether they depend on protected columns, and how accurate they are.

    Parameters
    ----------
    file
        CSV, Parquet, Feather or Excel; "-" is standard input.
    predictions
        Columns of predictions, comma-separated; the others are compared with the first.
    outcome
        Outcome column.
    """
    from setsquare.cli import audit as auditing

    check_outputs(options, file)
    return auditing.audit(file, predictions, outcome, columns, options, several=True)


@app.command
def monitor(
    file: File,
    /,
    *,
    predictions: str,
    protected: list[str],
    state: Path,
    bounds: tuple[float, float] | None = None,
    reference: tuple[str, ...] = (),
    categorical: tuple[str, ...] = (),
    confidence: float | None = None,
    reading: ReadingOptions = DEFAULTS,
    json: Path | None = None,
    fail_on_alarm: Annotated[bool, Parameter(name=("--fail-on-alarm", "--fail-on-leak"))] = False,
    quiet: bool = False,
) -> int:
    """Watch predictions that arrive over time: run it on each new file; frequent runs do not raise more false alarms.

    Parameters
    ----------
    file
        New rows in their order: CSV, Parquet, Feather or Excel; "-" is standard input.
    predictions
        Column of predictions.
    protected
        Columns with the groups, comma-separated.
    state
        File with the sums of earlier rows; the first run creates it.
    bounds
        Smallest and largest possible prediction; 0 and 1 by default.
    reference
        Reference groups, such as race=White, comma-separated; by default the largest group of each column.
    categorical
        Columns of numbers that are codes of groups, comma-separated.
    confidence
        1 minus the probability of any false alarm, however long the monitor runs; 0.95 by default.
    json
        Write the results as JSON.
    fail_on_alarm
        End with exit code 1 on an alarm; --fail-on-leak is the same.
    quiet
        Print the verdict only.
    """
    from setsquare.cli import monitor as monitoring

    check_outputs(Options(json=json), file, str(state))
    check_outputs(DEFAULTS, file, more=[state])
    request = monitoring.Request(predictions, protected, state, bounds, reference, categorical, confidence, reading)
    return monitoring.watch(file, request, json=json, fail_on_leak=fail_on_alarm, quiet=quiet)


@app.command
def correct(
    file: File,
    /,
    *,
    fitting: Annotated[Fitting, Parameter(name="*")],
    model: Path,
    apply_to: Annotated[str | None, Parameter(name="--apply", allow_leading_hyphen=True)] = None,
    write_predictions: Path | None = None,
    card: Path | None = None,
    options: Shared = DEFAULTS,
) -> int:
    """Fit a model whose predictions do not depend on protected columns; certify, audit on held-out rows, save.

    Parameters
    ----------
    file
        Training rows: CSV, Parquet, Feather or Excel; "-" is standard input.
    model
        Model file to write, such as model.setsquare.
    apply_to
        File of rows to predict with the corrected model; needs --write-predictions.
    write_predictions
        File to write these predictions to: .csv, .tsv, .parquet or .feather.
    card
        Write a model card, as Markdown (.md) or JSON (.json).
    """
    from setsquare.cli import correct as correcting

    if (apply_to is None) != (write_predictions is None):
        raise InputError("--apply and --write-predictions belong together: the rows to predict, and the file to write.")
    if apply_to == "-" and file == "-":
        raise InputError("Standard input can be read only once: give --apply a file.")
    check_outputs(options, file, apply_to, more=[model, write_predictions, card])
    return correcting.correct(file, fitting, model, apply_to, write_predictions, options, card)


@app.command
def tradeoff(
    file: File,
    /,
    *,
    fitting: Annotated[TradeoffFitting, Parameter(name="*")],
    budgets: int = 21,
    options: Annotated[TradeoffOptions, Parameter(name="*")] = TRADEOFF_DEFAULTS,
) -> int:
    """Show what a correction costs: loss, score and correlation for budgets from orthogonal to no correction.

    Parameters
    ----------
    file
        Training rows: CSV, Parquet, Feather or Excel; "-" is standard input.
    budgets
        Number of budgets.
    """
    from setsquare.cli import tradeoff as trading

    check_outputs(options, file)
    return trading.show(file, fitting, budgets, options)


@app.command
def apply(
    file: File,
    /,
    *,
    model: Path,
    write_predictions: Path | None = None,
    keep: tuple[str, ...] = (),
    raw_text: bool = False,
    reading: ReadingOptions = DEFAULTS,
    quiet: bool = False,
) -> int:
    """Predict the rows of a file with a saved model; a constrained model needs no protected columns.

    Parameters
    ----------
    file
        Rows to predict: CSV, Parquet, Feather or Excel; "-" is standard input.
    model
        Model file that `setsquare correct` has written.
    write_predictions
        File to write the predictions to: .csv, .tsv, .parquet or .feather; standard output by default.
    keep
        Columns of the file to write beside the predictions, comma-separated.
    raw_text
        Write texts to CSV as they are; by default an apostrophe is put before texts that start with = + - or @, which
        spreadsheets evaluate.
    quiet
        Print nothing but the predictions.
    """
    from setsquare.cli import apply as applying

    return applying.apply(file, model, write_predictions, keep, quiet, raw_text=raw_text, reading=reading)


@datasets.command(name="list")
def list_sets() -> int:
    """List the data sets, and say which are on this machine."""
    from setsquare.cli import data

    return data.list_sets()


@datasets.command(name="show")
def show_set(name: str, /) -> int:
    """Show outcome, protected columns, source and licence of a data set.

    Parameters
    ----------
    name
        Name of the data set, as in `setsquare data list`.
    """
    from setsquare.cli import data

    return data.show_set(name)


@datasets.command(name="fetch")
def fetch_set(name: str, /, *, output: Path | None = None, quiet: bool = False) -> int:
    """Find or download a data set and check it.

    Parameters
    ----------
    name
        Name of the data set, as in `setsquare data list`.
    output
        Write the table to this file: .csv, .tsv, .parquet or .feather.
    quiet
        Print nothing.
    """
    from setsquare.cli import data

    return data.fetch_set(name, output, quiet)


@app.command
def demo(*, html: Path | None = None) -> None:
    """Show a model before and after correction, on 5226 arrests (needs scikit-lego) or 442 patients.

    Parameters
    ----------
    html
        Write a report as one self-contained HTML page.
    """
    from setsquare.cli import demo as demonstration

    check_outputs(Options(html=html))
    demonstration.show(page=html)


@app.command(show=False)
def paper(*_: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> None:
    """Explain where the study of the paper is."""
    raise InputError("The study of the paper is not part of the package: run python -m studies from a clone.")


#: Exit codes beside 0, and 1 for a leak with ``--fail-on-leak``.
MAX_SENTENCE = 1000
BAD_INPUT, DEFECT, INTERRUPTED, BROKEN_PIPE, TERMINATED = 2, 3, 130, 141, 143


def run() -> int:
    """Run a command and return its exit code; only a leak ends with 1."""
    try:
        check_surroundings(sys.argv[1:])
        refuse_renamed(sys.argv[1:])
        code = app(sys.argv[1:], exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
        return int(code or 0)
    except BrokenPipeError:
        return _close_pipe()
    except UnusedCliTokensError as error:
        first = (error.unused_tokens or [""])[0]
        return _refuse(f"Unexpected {first!r}: separate columns by commas, as in --protected sex,race.")
    except MissingArgumentError as error:
        return _refuse(_missing(error))
    except (SetsquareError, CycloptsError) as error:
        return _refuse(phrase(message(error)))
    except OSError as error:
        return _refuse(f"{error.filename or 'The output'} cannot be used ({error.strerror or error}).")
    except MemoryError:
        return _refuse("There is not enough memory for this: use fewer rows or columns, or a larger machine.")
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit as end:
        return _close_pipe() if end.code == 1 else int(end.code or 0)  # rich exits with 1 when the pipe is closed
    except Exception:
        traceback.print_exc()
        print("setsquare: this is a defect of setsquare; please report it with the lines above.", file=sys.stderr)
        return DEFECT


def _missing(error: MissingArgumentError) -> str:
    """What a command lacks: an option, the value of one, or a file."""
    name = "" if error.argument is None else error.argument.name
    command = " ".join(error.command_chain or ())
    advice = f"see setsquare {command} --help."
    if name in sys.argv[1:]:
        return f"{name} needs a value: {advice}"
    return f"The command {command} needs {name or 'more arguments'}: {advice}"


def _refuse(sentence: str) -> int:
    short = excerpt(re.sub(r"\s+", " ", sentence).strip(), MAX_SENTENCE)
    if sys.stderr is not None:
        print(f"setsquare: {clean(short)}", file=sys.stderr)
    return BAD_INPUT


def _close_pipe() -> int:
    """Discard what is left to print, so that Python prints no traceback at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE


def main() -> None:
    """Run the command line; bad input ends with exit code 2 and one sentence."""
    with termination_as_interrupt() as was_terminated:
        code = run()
    sys.exit(TERMINATED if code == INTERRUPTED and was_terminated() else code)
