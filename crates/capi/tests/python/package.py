"""The package is what its stubs and its version say: package.py VERSION."""

import ast
import inspect
import pathlib
import sys

import copyrpc
from copyrpc import _library

FOLDER = pathlib.Path(copyrpc.__file__).parent
assert copyrpc.__version__ == sys.argv[1], copyrpc.__version__
assert (FOLDER / "py.typed").exists()


def parameters(function: ast.AST) -> list:
    """Names of the parameters of a function in a stub, and how many have defaults."""
    told = function.args
    names = [argument.arg for argument in [*told.posonlyargs, *told.args, *told.kwonlyargs]]
    if told.vararg:
        names.append("*" + told.vararg.arg)
    return [names, len(told.defaults)]


def true_parameters(function: object) -> list:
    told = inspect.signature(function).parameters.values()
    star = inspect.Parameter.VAR_POSITIONAL
    names = [("*" if each.kind is star else "") + each.name for each in told]
    return [names, sum(each.default is not each.empty for each in told)]


stub = ast.parse((FOLDER / "__init__.pyi").read_text())
classes = {each.name: each for each in stub.body if isinstance(each, ast.ClassDef) and each.name[0] != "_"}
functions = {each.name for each in stub.body if isinstance(each, ast.FunctionDef)}
told = set(classes) | functions | {each.target.id for each in stub.body if isinstance(each, ast.AnnAssign)}
assert told == set(copyrpc.__all__), told ^ set(copyrpc.__all__)
for name, told in classes.items():
    real = getattr(copyrpc, name)
    methods = {each.name: each for each in told.body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))}
    for method, declared in methods.items():
        found = inspect.getattr_static(real, method, None) or getattr(real, method)
        if isinstance(found, property):
            continue
        assert isinstance(declared, ast.AsyncFunctionDef) == inspect.iscoroutinefunction(found), (name, method)
        assert parameters(declared) == true_parameters(found), (name, method)
    own = {key for key, value in vars(real).items() if key[0] != "_" and callable(value)}
    inherited = {"close"}
    fields = {each.target.id for each in told.body if isinstance(each, ast.AnnAssign)}
    fields |= {each.targets[0].id for each in told.body if isinstance(each, ast.Assign)}
    missing = own - set(methods) - inherited - fields
    assert not missing, (name, missing)
for name in functions:
    declared = next(each for each in stub.body if getattr(each, "name", "") == name)
    assert parameters(declared) == true_parameters(getattr(copyrpc, name)), name
for status, member in copyrpc.Status.__members__.items():
    assert getattr(copyrpc.Status, status) == member
assert _library.NAME == f"libcopyrpc_c.so.{_library.ABI}"
