"""Which SGLang the plugin fits: by version, and by the parameters of every function that a hook wraps.

Sources are read, not imported: the check costs a parse of a few files, works before SGLang's own modules are loaded,
and needs no torch. What another plugin changes at run time is not seen; what an SGLang release changes is.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from specserver.plugin.versions import SUPPORTED_VERSIONS


@dataclass(frozen=True)
class Target:
    """A function of SGLang and the parameters that we count on.

    path        module path, then `Class.method` or `function`, all dotted
    parameters  names in order; `*` stands before keyword-only ones
    variants    versions that have other parameters, with those
    """

    module: str
    name: str
    parameters: tuple[str, ...]
    variants: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def parameters_in(self, version: str) -> tuple[str, ...]:
        return dict(self.variants).get(version, self.parameters)

    @property
    def path(self) -> str:
        return f"{self.module}.{self.name}"


@cache
def engine_version() -> str:
    """Version of the installed SGLang, or `unknown`."""
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def find_version_problem(version: str) -> str | None:
    if version in SUPPORTED_VERSIONS:
        return None
    return f"SGLang {version} is not supported (supported: {', '.join(SUPPORTED_VERSIONS)})"


def engine_sources() -> Path:
    """Directory that holds the package `sglang`."""
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("the package sglang is not installed")
    return Path(next(iter(spec.submodule_search_locations))).parent


def find_target_problems(targets: Iterable[Target], sources: Path, version: str) -> list[str]:
    """What differs from the parameters that the hooks were written for; empty where all fit."""
    problems = []
    trees: dict[str, ast.Module | None] = {}
    for target in targets:
        if target.module not in trees:
            trees[target.module] = _parse_module(target.module, sources)
        tree = trees[target.module]
        found = None if tree is None else _parameters(tree, target.name)
        if found is None:
            problems.append(f"{target.path} is missing")
        elif found != (expected := target.parameters_in(version)):
            problems.append(f"{target.path} takes ({', '.join(found)}), not ({', '.join(expected)})")
    return problems


def _parse_module(module: str, sources: Path) -> ast.Module | None:
    path = sources.joinpath(*module.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return ast.parse(candidate.read_bytes())
    return None


def _parameters(tree: ast.Module, name: str) -> tuple[str, ...] | None:
    """Parameter names of a dotted name in a module; None where there is no such function."""
    body: list[ast.stmt] = tree.body
    *classes, function = name.split(".")
    for class_name in classes:
        found = next((node for node in body if isinstance(node, ast.ClassDef) and node.name == class_name), None)
        if found is None:
            return None
        body = found.body
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function:
            return _names(node.args)
    return None


def _names(arguments: ast.arguments) -> tuple[str, ...]:
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    if arguments.vararg is not None:
        names.append(f"*{arguments.vararg.arg}")
    elif arguments.kwonlyargs:
        names.append("*")
    names.extend(argument.arg for argument in arguments.kwonlyargs)
    if arguments.kwarg is not None:
        names.append(f"**{arguments.kwarg.arg}")
    return tuple(names)
