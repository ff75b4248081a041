"""Notes: sentences for people that carry a code and fields for programs.

No code reads a sentence back. What a program asks of a note is its ``code`` or one of its ``fields``; arguments that a
sentence advises to pass are fields too (:class:`Option`), so that the command line can name its own options.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

#: What was done or assumed, what weakens a result, what makes it doubtful.
Severity: TypeAlias = Literal["info", "caution", "warning"]


@dataclass(frozen=True, slots=True)
class Option:
    """An argument that a sentence speaks of; a verb may stand before it.

    Attributes
    ----------
    name : str
    value : object
        None where the reader has to choose one.
    words : str
        What to do in Python instead, where that takes no argument.

    Examples
    --------
    >>> f"{Option('missing', 'drop'):pass} or {Option('family')}"
    "pass missing='drop' or family="
    """

    name: str
    value: object = None
    words: str = ""

    def __str__(self) -> str:
        return self.words or f"{self.name}={'' if self.value is None else repr(self.value)}"

    def __format__(self, verb: str) -> str:
        return f"{verb} {self}" if verb else str(self)


#: How a surface names an option; the second argument is the verb before it, or nothing.
Surface: TypeAlias = Callable[[Option, str], str]


class Note(str):
    """A sentence with a code, fields and a severity; as a string it is phrased for Python.

    Parameters
    ----------
    code : str
        What programs know it by; it stays when the wording changes.
    template : str
        The sentence, with the names of fields in braces.
    severity : {"info", "caution", "warning"}
    **fields
        What the sentence is about.

    Examples
    --------
    >>> note = Note("family-guessed", "Taken for {kind}: {family:pass} if not.", kind="counts", family=Option("family"))
    >>> print(note, note.code, note.phrase(lambda option, verb: f"{verb} --{option.name}"))
    Taken for counts: pass family= if not. family-guessed Taken for counts: pass --family if not.
    """

    code: str
    template: str
    severity: Severity
    fields: dict[str, Any]

    def __new__(cls, code: str, template: str, /, severity: Severity = "info", **fields: Any) -> Note:
        """Phrase the sentence for Python."""
        note = super().__new__(cls, template.format(**fields))
        note.code, note.template, note.severity, note.fields = code, template, severity, fields
        return note

    def __getnewargs_ex__(self) -> tuple[tuple[str, str], dict[str, Any]]:
        return (self.code, self.template), {"severity": self.severity, **self.fields}

    def phrase(self, surface: Surface) -> str:
        """Write the sentence as another surface has it."""
        fields = {key: _Named(v, surface) if isinstance(v, Option) else v for key, v in self.fields.items()}
        return self.template.format(**fields)

    def of(self, subject: str) -> Note:
        """Put the name of what it is about before the sentence."""
        fields = {**self.fields, "subject_": subject}
        return Note(self.code, f"{{subject_}}: {self.template}", severity=self.severity, **fields)


@dataclass(frozen=True, slots=True)
class _Named:
    """An option in the words of a surface."""

    option: Option
    surface: Surface

    def __format__(self, verb: str) -> str:
        return self.surface(self.option, verb)


def describe(note: str) -> dict[str, str]:
    """A note in plain values; sentences of the caller have the code "remark"."""
    code, severity = (note.code, note.severity) if isinstance(note, Note) else ("remark", "info")
    return {"code": code, "severity": severity, "text": str(note)}


def message(error: Exception) -> Note:
    """What an error or a warning says; where it has no note, the name of its class is the code."""
    if error.args and isinstance(error.args[0], Note):
        return error.args[0]
    return Note(type(error).__name__, "{text}", severity="warning", text=str(error))


def lead(subject: str, note: str) -> str:
    """Put a name before a sentence, and keep what a note carries."""
    return note.of(subject) if isinstance(note, Note) else f"{subject}: {note}"
