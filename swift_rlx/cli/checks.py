"""What `swift-rlx doctor` has to say, as data, and its two printed forms.

A check FAILs exactly if it keeps `swift rlhf --rlhf_type rloo` from running; everything else that deserves
attention is a WARN. The exit code follows from that alone.
"""

import json
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Status(str, Enum):
    """How a check ended."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True)
class Check:
    """One line of the report. `remedy` says what to do; `data` are the facts, for programs."""

    name: str
    status: Status
    detail: str
    remedy: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


def ok(name: str, detail: str, **data: Any) -> Check:
    """A check that needs no action."""
    return Check(name, Status.OK, detail, None, data)


def warn(name: str, detail: str, remedy: str, **data: Any) -> Check:
    """A check that deserves attention but does not keep rloo from running."""
    return Check(name, Status.WARN, detail, remedy, data)


def fail(name: str, detail: str, remedy: str, **data: Any) -> Check:
    """A check that keeps rloo from running."""
    return Check(name, Status.FAIL, detail, remedy, data)


@dataclass(frozen=True)
class Section:
    """Checks of one subject. `key` names it in JSON, `title` in text."""

    key: str
    title: str
    checks: tuple[Check, ...]


@dataclass(frozen=True)
class Report:
    """The whole finding. `subject`: what it says can be, where nothing failed."""

    version: str
    sections: tuple[Section, ...]
    subject: str = "`swift rlhf --rlhf_type rloo` can run here"

    def named(self, status: Status) -> tuple[str, ...]:
        """Names of the checks that ended like this, in order."""
        return tuple(c.name for section in self.sections for c in section.checks if c.status is status)

    @property
    def exit_code(self) -> int:
        """0 if rloo can run here, 1 if not."""
        return 1 if self.named(Status.FAIL) else 0

    def as_json(self) -> str:
        """The report as one JSON object; docs/en/doctor.md describes its keys."""
        content = {
            "swift_rlx": self.version,
            "can_run_rloo": self.exit_code == 0,
            "exit_code": self.exit_code,
            "sections": {
                section.key: [
                    {
                        "name": c.name,
                        "status": c.status.value,
                        "detail": c.detail,
                        "remedy": c.remedy,
                        **({"data": dict(c.data)} if c.data else {}),
                    }
                    for c in section.checks
                ]
                for section in self.sections
            },
        }
        return json.dumps(content, indent=2, ensure_ascii=False)

    def as_text(self, width: int = 110) -> str:
        """The report for people: aligned columns, at most `width` wide where words allow it."""
        names = [c.name for section in self.sections for c in section.checks]
        column = min(max(map(len, names), default=0), 28)
        blocks = []
        for section in self.sections:
            lines = [line for check in section.checks for line in _lines(check, column, width)]
            blocks.append("\n".join([section.title, *lines]))
        return "\n\n".join([*blocks, self._verdict()]) + "\n"

    def _verdict(self) -> str:
        failed, warned = self.named(Status.FAIL), self.named(Status.WARN)
        if failed:
            return f"{self.subject.replace(' can ', ' cannot ')}: {', '.join(failed)} failed"
        warnings = f", {len(warned)} warning{'s' if len(warned) > 1 else ''}" if warned else ""
        return f"{self.subject}{warnings}"


def _lines(check: Check, column: int, width: int) -> list[str]:
    head = f"  {check.status.value:<4}  {check.name:<{column}}  "
    lines = _wrapped(check.detail, head, width)
    if check.remedy is not None:
        lines += _wrapped(f"-> {check.remedy}", " " * (len("  FAIL  ") + column + 2), width)
    return lines


def _wrapped(text: str, head: str, width: int) -> list[str]:
    indent = " " * len(head)
    return textwrap.wrap(
        text,
        max(width, len(head) + 40),
        initial_indent=head,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [head.rstrip()]
