"""Small changes of Python source code that a test should notice."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
}
# Fields of a node that hold types, not behaviour.
ANNOTATIONS = ("annotation", "returns", "type_params")


class Mutant(NamedTuple):
    """One change of one file; offsets are in bytes."""

    path: str  # below src/fedraw
    kind: str
    line: int
    start: int
    end: int
    text: str  # the replacement
    before: str  # the source line, without indentation
    after: str

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]


def mutants(path: Path, name: str) -> list[Mutant]:
    """Return all mutants of a file, in the order of its lines."""
    source = path.read_bytes()
    tree = ast.parse(source)
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    found = []
    for node, kind, changed in _changes(tree):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        text = ast.unparse(changed)
        if isinstance(changed, ast.expr) and not isinstance(changed, ast.Constant | ast.Call):
            text = f"({text})"
        before = lines[node.lineno - 1].decode().strip()
        line_start = starts[node.lineno - 1]
        after = (source[line_start:start] + text.encode() + source[end:]).decode()
        after = after.splitlines()[0].strip() if after.strip() else ""
        found.append(Mutant(name, kind, node.lineno, start, end, text, before, after))
    return sorted(found, key=lambda mutant: (mutant.line, mutant.start, mutant.kind, mutant.text))


def _changes(tree: ast.Module) -> Iterator[tuple[ast.expr | ast.stmt, str, ast.AST]]:
    """Yield each node that can be changed, the kind of change, and the replacement."""
    for node in _live(tree):
        if isinstance(node, ast.expr):
            yield from ((node, kind, changed) for kind, changed in _of_expression(node))
        elif isinstance(node, ast.stmt):
            yield from ((node, kind, changed) for kind, changed in _of_statement(node))
        if isinstance(node, ast.If | ast.While | ast.IfExp):
            yield node.test, "negated condition", ast.UnaryOp(ast.Not(), node.test)


def _live(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes with behaviour: no annotations, texts, or code for the type checker."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in ANNOTATIONS:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_idle(child):
                yield from _live(child)


def _is_idle(node: ast.AST) -> bool:
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return True
    if isinstance(node, ast.Import | ast.ImportFrom | ast.JoinedStr):
        return True
    if isinstance(node, ast.keyword) and node.arg in ("strict", "stacklevel"):
        return True  # of zip and of warnings
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True  # a docstring
    is_alias = isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp)
    return is_alias and isinstance(node.value.op, ast.BitOr)  # type: ignore[attr-defined]


def _of_expression(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    match node:
        case ast.Compare(ops=[op, *_]):
            changed = copy.deepcopy(node)
            changed.ops[0] = COMPARISONS[type(op)]()
            yield "comparison", changed
        case ast.BinOp(op=op) if type(op) in ARITHMETIC:
            yield "arithmetic", ast.BinOp(node.left, ARITHMETIC[type(op)](), node.right)
        case ast.BoolOp(op=op):
            other = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield "and, or", ast.BoolOp(other, node.values)
        case ast.UnaryOp(op=ast.Not()):
            yield "dropped not", node.operand
        case ast.UnaryOp(op=ast.USub()) if not isinstance(node.operand, ast.Constant):
            yield "dropped minus", node.operand
        case ast.Constant(value=bool(value)):
            yield "constant", ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield "constant", ast.Constant(value + 1)
        case ast.Call(args=[first, second, *rest]) if not _has_same_swapped(node):
            yield "swapped arguments", ast.Call(node.func, [second, first, *rest], node.keywords)


def _has_same_swapped(call: ast.Call) -> bool:
    """Return whether a call does the same with its first two arguments swapped, or cannot be."""
    first, second = call.args[:2]
    is_symmetric = isinstance(call.func, ast.Name) and call.func.id in ("min", "max")
    has_starred = any(isinstance(arg, ast.Starred) for arg in call.args)
    return is_symmetric or has_starred or ast.dump(first) == ast.dump(second)


def _of_statement(node: ast.stmt) -> Iterator[tuple[str, ast.stmt]]:
    match node:
        case ast.AugAssign(op=op) if type(op) in ARITHMETIC:
            yield "arithmetic", ast.AugAssign(node.target, ARITHMETIC[type(op)](), node.value)
            yield "dropped statement", ast.Pass()
        case ast.Expr(value=ast.Call()) | ast.Raise() | ast.Delete() | ast.AugAssign():
            yield "dropped statement", ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
            yield "dropped statement", ast.Pass()
        case ast.Continue() | ast.Break():
            yield "dropped statement", ast.Pass()
