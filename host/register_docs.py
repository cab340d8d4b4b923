"""Writes the register map down: for one design, or in general for ``docs/registers.md``.

Both come from ``model/registers.py``, as the RTL and the drivers do. Test:
``tests/test_registers.py``.
"""

import html

from ..model import registers
from ..model.plan import Plan
from ..model.registers import (
    ENGINE_COUNTERS,
    Command,
    ErrorBit,
    Memory,
    PacketKind,
    Register,
    register_map,
)

__all__ = ["general_page", "registers_html", "registers_markdown"]

STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:60em;color:#22303c}"
    "table{border-collapse:collapse}td,th{padding:.2em .8em;text-align:left}"
    "code{font-size:.95em}"
)

Row = tuple[str, ...]

HEAD: Row = ("address", "register", "access", "meaning")


def registers_markdown(plan: Plan) -> str:
    """Return the register map of a design as a Markdown page."""
    table = _markdown(HEAD, _rows(register_map(plan)))
    return f"# Registers of {plan.name}\n\nDesign {plan.identity}.\n\n{table}"


def registers_html(plan: Plan) -> str:
    """Return the register map of a design as an HTML page that stands alone."""
    title = html.escape(f"Registers of {plan.name}")
    table = [_cells(HEAD, "th"), *(_cells(row, "td") for row in _rows(register_map(plan)))]
    return "\n".join(
        [
            "<!doctype html>",
            f'<html lang="en"><meta charset="utf-8"><title>{title}</title>',
            f"<style>{STYLE}</style>",
            f"<h1>{title}</h1>",
            f"<p>Design <code>{plan.identity}</code>.</p>",
            "<table>",
            *table,
            "</table>",
            "</html>\n",
        ]
    )


def _cells(row: Row, tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row) + "</tr>"


def general_page(plan: Plan) -> str:
    """Return the page that holds for every design: fixed registers, what layers add, packets, error
    bits.

    ``plan`` is any plan; only its fixed registers are used.
    """
    fixed = [register for register in register_map(plan) if "." not in register.name]
    layers: list[Row] = [
        ("`<layer>.version`", "weight versions finished in this segment; trainable layers"),
        *((f"`<layer>.<engine>.{name}`", text) for name, text in ENGINE_COUNTERS.items()),
        ("`<layer>.<tensor>.saturated`", "values clipped to the tensor's format"),
        ("`loss.error.saturated`", "the same for the error of the logits"),
    ]
    packets = (registers.__doc__ or "").partition("Packets are ")[2].replace("``", "`").strip()
    enums: list[Row] = [
        (kind.__name__, entry.name, str(int(entry)))
        for kind in (PacketKind, Memory, Command, ErrorBit)
        for entry in kind
    ]
    return (
        "\n".join(
            [
                "# Registers and packets",
                "",
                "Written by `scripts/docs.py` from `model/registers.py`; "
                "`gradweave build` writes the full map of a design.",
                "",
                "All registers are 32 bits on AXI4-Lite; addresses count bytes.",
                "",
                _markdown(HEAD, _rows(fixed)),
                "Behind them come those of every layer, in the order of the chain; "
                "`<engine>` is `fp`, `eb` or `wg`:",
                "",
                _markdown(("register", "meaning"), layers),
                "## Packets",
                "",
                f"Packets are {packets}",
                "",
                "## Numbers",
                "",
                _markdown(("enumeration", "name", "value or bit"), enums),
            ]
        ).rstrip()
        + "\n"
    )


def _rows(found: list[Register]) -> list[Row]:
    return [(f"0x{r.address:04x}", r.name, r.access, r.text) for r in found]


def _markdown(head: Row, rows: list[Row]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"
