"""Rewrites emitted Verilog, without changing what it does, so that it simulates faster.

Test: ``tests/test_build.py``.
"""

import re

from ..model.errors import ToolError

__all__ = ["WRAPPER", "compress_initial_blocks", "register_inputs", "top_ports"]

WRAPPER = "simulated"

_PORT = re.compile(
    r"\b(input|output)\s+(?:(?:wire|reg|logic)\s+)?(?:signed\s+)?(\[\d+:\d+\]\s*)?([A-Za-z_]\w*)"
)
_WORD = re.compile(r"( *)(\S+)\[(\d+)\] = (\d+'[hb][0-9a-fA-F]+);\n")
_CHANNELS = ("s_axil_aw", "s_axil_w", "s_axil_b", "s_axil_ar", "s_axil_r")
LEAST_RUN = 8


def top_ports(verilog: str, top: str) -> dict[str, tuple[str, str]]:
    """Return the ports of module ``top``: name to direction and range, such as ``[31:0]`` or none.

    Raises
    ------
    ToolError
        When the text has no such module.
    """
    start = re.search(rf"^\s*module\s+{re.escape(top)}\b", verilog, re.MULTILINE)
    if start is None:
        raise ToolError(f"verilog must have a module {top!r}, but has none: name its top module")
    body = verilog[start.end() : verilog.find("endmodule", start.end())]
    bare = re.sub(r"/\*.*?\*/|\(\*(?!\)).*?\*\)|//[^\n]*", "", body, flags=re.DOTALL)
    return {name: (way, (width or "").strip()) for way, width, name in _PORT.findall(bare)}


def register_inputs(verilog: str, top: str) -> str:
    """Return the design with a module ``simulated`` around ``top`` that passes its ports through,
    but registers ``rst``, which so takes effect one cycle late, and puts register slices on the
    AXI4-Lite channels, which so answer a few cycles later. Streams pass as they are.

    Verilator evaluates what depends on an input in both halves of the clock, what depends on a
    register once; and a synchronous reset is read by every process.

    Raises
    ------
    ToolError
        When the text has no such module.
    """
    ports = top_ports(verilog, top)
    declared = ",\n".join(f"  {way} wire {width} {name}" for name, (way, width) in ports.items())
    inner = {name: name for name in ports}
    lines = []
    if "rst" in ports:
        inner["rst"] = "held"
        lines += ["  reg held = 1;", "  always @(posedge clk) held <= rst;"]
    for channel in _CHANNELS:
        valid = f"{channel}valid"
        if valid in ports and "rst" in ports:
            payload = [
                name
                for name in ports
                if name in (f"{channel}{suffix}" for suffix in ("addr", "data", "strb", "resp"))
            ]
            lines += _slice(channel, payload, ports)
            inner |= {name: f"{name}_inner" for name in (valid, f"{channel}ready", *payload)}
    joined = ",\n".join(f"    .{name}({inner[name]})" for name in ports)
    body = "".join(f"{line}\n" for line in lines)
    return (
        f"{verilog}\nmodule {WRAPPER}(\n{declared}\n);\n{body}  {top} {top} (\n{joined}\n  );\n"
        "endmodule\n"
    )


def _slice(channel: str, payload: list[str], ports: dict[str, tuple[str, str]]) -> list[str]:
    """A register that holds one transfer of a channel, at most one in two cycles."""
    valid, ready = f"{channel}valid", f"{channel}ready"
    source, sink = ("", "_inner") if ports[valid][0] == "input" else ("_inner", "")
    lines = [f"  wire {valid}_inner;", f"  wire {ready}_inner;"]
    lines += [f"  wire {ports[name][1]} {name}_inner;" for name in payload]
    held = f"{channel}held"
    lines += [f"  reg {held} = 0;", f"  assign {ready}{source} = ~{held};"]
    stored = [(name, f"{name}_held") for name in payload]
    lines += [f"  reg {ports[name][1]} {register};" for name, register in stored]
    lines.append("  always @(posedge clk)")
    lines.append(f"    if (held | {held} & {ready}{sink}) {held} <= 0;")
    lines.append(f"    else if ({valid}{source} & ~{held}) {held} <= 1;")
    lines += [
        f"  always @(posedge clk) if (~{held}) {register} <= {name}{source};"
        for name, register in stored
    ]
    drive = [(f"{valid}{sink}", held), *((f"{name}{sink}", register) for name, register in stored)]
    lines += [f"  assign {target} = {value};" for target, value in drive]
    return lines


def compress_initial_blocks(verilog: str) -> str:
    """Return the design with runs of equal initial memory words written as loops.

    A memory of 65,536 words is emitted as as many assignments, which take Verilator and the
    compiler minutes.
    """
    if not _WORD.search(verilog):
        return verilog
    pieces: list[str] = []
    end = 0
    for loops, (first, last, stop) in enumerate(_runs(verilog)):
        indent, memory, low, value = first.groups()
        count = int(last[3]) - int(low) + 1
        pieces.append(verilog[end : first.start()])
        name = f"initial_{loops}"
        pieces.append(
            f"{indent}begin : {name}\n{indent}  integer n;\n"
            f"{indent}  for (n = {low}; n < {int(low) + count}; n = n + 1)\n"
            f"{indent}    {memory} [n] = {value};\n{indent}end\n"
        )
        end = stop
    return "".join([*pieces, verilog[end:]])


def _runs(verilog: str) -> list[tuple[re.Match[str], re.Match[str], int]]:
    """First and last assignment of each run of at least ``LEAST_RUN``, and where the run ends."""
    found: list[tuple[re.Match[str] | None, re.Match[str] | None]] = []
    first: re.Match[str] | None = None
    last: re.Match[str] | None = None
    for word in _WORD.finditer(verilog):
        follows = (
            first is not None
            and last is not None
            and word.start() == last.end()
            and word[2] == first[2]
            and word[4] == first[4]
            and int(word[3]) == int(last[3]) + 1
        )
        if not follows:
            found.append((first, last))
            first = word
        last = word
    found.append((first, last))
    return [
        (first, last, last.end())
        for first, last in found
        if first is not None and last is not None and int(last[3]) - int(first[3]) + 1 >= LEAST_RUN
    ]
