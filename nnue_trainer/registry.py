"""Registries of the classes that a recipe names by `kind`; users can add classes without changing this package.

A registry holds the classes of one sort of thing: nets, losses, optimisers. Each class is a section
(`schema.section`), so its fields are its keys in a recipe. A recipe names a class in one of three ways:

- `kind: win_rate`: registered by that name. Built-in classes are the modules of the registry's package; adding one is
  adding a file.
- `kind: path/to/file.py:Class`: a class in a file of the user's, relative to the working directory.
- `kind: name`: an entry point of that name, which an installed package offers in the group of the registry
  (`nnue_trainer.losses`, for example).

Reading a checkpoint or a net never imports code. There a `file.py:Class` is found only if a file of that name was
loaded before, because the recipe in hand or `--plugin FILE` names it.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import pkgutil
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

import pydantic
from pydantic_core import (
    InitErrorDetails,
    PydanticCustomError,
    PydanticSerializationError,
    ValidationError,
    core_schema,
)

from nnue_trainer.errors import UserError

__all__ = ["PluginsFirst", "Registry", "changes", "load_plugin", "loaded", "plugins"]

T = TypeVar("T")
C = TypeVar("C")
TRUSTED = "trusted"
"""Key of pydantic's validation context: whether the user handed the data over, so it may name code and programs."""


@dataclass(frozen=True)
class Plugin:
    """A user's file that was imported. `sha256` is the digest of its bytes, in hexadecimal. A file that is not
    Python has a module as well (`_LOADERS`), whose attributes are the classes in the file."""

    path: Path
    sha256: str
    module: ModuleType


class PluginMissing(UserError):
    """A class is in a file of the user's that was not loaded, and a file that is read may not make the program load
    it."""

    def __init__(self, file: Path, message: str) -> None:
        super().__init__(message)
        self.file = file


_plugins: dict[str, Plugin] = {}  # by file name: a checkpoint is read on other machines, where folders differ
_packages: dict[str, str] = {}  # "REGISTRY:KIND" → "PACKAGE VERSION"
_registries: list[Registry[Any]] = []
_importing = threading.RLock()  # one for all of them: modules of one registry may need another


_LOADERS = {".h": "nnue_trainer.data.feature_sets.header"}
"""Suffix → the module whose `load(path, name)` makes a module of a file that is not Python."""


def load_plugin(path: str | Path) -> Plugin:
    """Imports a Python file, once. UserError if there is none, or if it fails, with the line in it that failed. A C++
    header with feature sets (.h) is only registered; it is compiled when one of its sets is first used."""
    path = Path(path)
    try:
        code = path.read_bytes()
    except OSError as error:
        raise UserError(f"plugin {path}: cannot be read: {error.strerror}") from None
    digest = hashlib.sha256(code).hexdigest()
    loaded = _plugins.get(path.name)
    if loaded is not None:
        if loaded.sha256 != digest:
            raise UserError(f"plugin {path}: another file of this name was loaded already, {loaded.path}; rename one")
        return loaded
    if path.suffix in _LOADERS:
        made = importlib.import_module(_LOADERS[path.suffix]).load(path, f"nnue_plugin_{path.stem}_h")
        _plugins[path.name] = Plugin(path, digest, made)
        return _plugins[path.name]
    name = f"nnue_plugin_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if path.suffix != ".py" or spec is None or spec.loader is None:
        raise UserError(f"plugin {path}: expected a Python file, file.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module while they are created
    try:
        spec.loader.exec_module(module)
    except UserError:
        del sys.modules[name]
        raise
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise UserError(f"plugin {path}{_line_of(error, path)}: {type(error).__name__}: {error}") from error
    _plugins[path.name] = Plugin(path, digest, module)
    return _plugins[path.name]


def plugins() -> dict[str, str]:
    """The classes that a checkpoint was made with: file name → SHA-256 of every file that was loaded, and
    "REGISTRY:KIND" → "PACKAGE VERSION" of every class of an installed package that was used."""
    files = {name: plugin.sha256 for name, plugin in _plugins.items()}
    return dict(sorted((files | _packages).items()))


def forget_plugins() -> None:
    """Forgets everything from outside, as in a process that has just started."""
    for plugin in _plugins.values():
        sys.modules.pop(plugin.module.__name__, None)
    _plugins.clear()
    _packages.clear()
    for known in _registries:
        known._outside.clear()
        known._offered = None


def foreign_modules() -> frozenset[str]:
    """The names of modules and packages from outside that were imported for a registry."""
    files = {plugin.module.__name__ for plugin in _plugins.values()}
    classes = {cls.__module__.partition(".")[0] for known in _registries for cls in known._outside.values()}
    return frozenset(files | classes) - {__name__.partition(".")[0]}


def loaded() -> list[Path]:
    """The loaded files, in the order of loading."""
    return [plugin.path for plugin in _plugins.values()]


class PluginsFirst:
    """Stands before objects in a pickle: a process that reads it first imports and registers all classes from outside
    that are registered here. It needs no more trust than any pickle does, which runs what it holds."""

    def __reduce__(self) -> tuple[Callable[..., PluginsFirst], tuple[list[Path], list[tuple[str, str, str]]]]:
        kinds = [(known.package, known.group, kind) for known in _registries for kind in known._outside]
        return _after_plugins, ([path.absolute() for path in loaded()], kinds)


def _after_plugins(paths: list[Path], kinds: list[tuple[str, str, str]]) -> PluginsFirst:
    for path in paths:
        load_plugin(path)
    for package, group, kind in kinds:
        importlib.import_module(package)
        next(known for known in _registries if known.group == group).find(kind, may_import=False)
    return PluginsFirst()


def changes(before: Mapping[str, Any]) -> Iterator[str]:
    """One line for each file or package that has changed since a checkpoint was written; `before` is what `plugins`
    returned then. Files that are not loaded now are left out: a class that is needed and missing is an error
    already."""
    for name, now in plugins().items():
        then = before.get(name)
        if then is not None and then != now:
            yield f"{name} has changed since: it was {str(then)[:12]}, now it is {now[:12]}"


def fields_of(instance: Any) -> dict[str, Any]:
    """The fields of a section as plain JSON data. KeyboardInterrupt at a Ctrl-C, which pydantic would report as an
    error of its own."""
    try:
        data: dict[str, Any] = pydantic.TypeAdapter(type(instance)).dump_python(instance, mode="json", by_alias=True)
    except PydanticSerializationError as error:
        if any(name in str(error) for name in ("KeyboardInterrupt", "Preempted")):
            raise KeyboardInterrupt from error
        raise
    return data


class Registry(Generic[T]):
    """The classes for one part of a recipe, such as all losses. In a section, `Annotated[Base, REGISTRY]` is a field
    that takes any of them."""

    def __init__(
        self, package: str, base: Callable[[], type[T]], *, what: str, default: str | None = None, group: str = ""
    ) -> None:
        """The modules of `package` hold the built-in classes; `base` gives the class that all of them derive from (a
        function, since it may be defined after the registry); `what` is the word for one of them in messages; `default`
        is the kind of a section that names none; `group` is the entry-point group, by default the package."""
        self.package = package
        self.group = group or package
        self.what = what
        self.default = default
        self._base = base
        self._classes: dict[str, type[T]] = {}
        self._short: dict[str, str] = {}  # kind → field
        self._outside: dict[str, type[T]] = {}  # from files and installed packages
        self._offered: dict[str, EntryPoint] | None = None  # by installed packages
        self._searched = False
        _registries.append(self)

    def register(self, kind: str, *, short: str = "") -> Callable[[type[C]], type[C]]:
        """Decorator that registers a section as `kind`. Write it above `@section`. With `short`, the name of a field, a
        recipe may also have `KIND: value` in place of `kind: KIND` and `FIELD: value`."""
        if short:
            self._short[kind] = short

        def add(cls: type[C]) -> type[C]:
            checked = self._checked(kind, cls)
            known = self._classes.setdefault(kind, checked)
            if known is not checked:
                raise UserError(
                    f"{self.what} {kind!r} is defined twice: in {known.__module__} and in {cls.__module__}; rename one"
                )
            return cls

        return add

    def kinds(self) -> dict[str, type[T]]:
        """All classes that are registered now, by kind: built-in ones, and users' classes that were requested."""
        self._import_built_in()
        return self._classes | self._outside

    def is_built_in(self, kind: str) -> bool:
        """Whether the class called `kind` is part of this package."""
        self._import_built_in()
        return kind in self._classes

    def names(self) -> list[str]:
        """Every name that a recipe may use, including installed packages'."""
        return sorted({*self.kinds(), *self._entry_points()})

    def find(self, kind: str, *, may_import: bool = True) -> type[T]:
        """The class called `kind`. UserError if there is none. Without `may_import` no file is imported for it."""
        self._import_built_in()
        file, colon, name = kind.rpartition(":")
        known = self._classes.get(kind, self._outside.get(kind))
        if known is not None:
            return known
        if colon and file.endswith((".py", *_LOADERS)):
            return self._of_plugin(kind, Path(file), name, may_import)
        offered = self._entry_points().get(kind)
        if offered is not None:
            return self._of_package(kind, offered)
        raise UserError(f"found {kind!r}, expected one of {', '.join(self.names())}, or path/to/file.py:Class")

    def parse(self, data: Any, *, trusted: bool, context: Mapping[str, Any] | None = None) -> T:
        """The section that plain JSON data describes: {"kind": …, field: value, …}. `trusted` is that of
        `schema.validate`. Pydantic's ValidationError, with places below `data`, for anything else."""
        if isinstance(data, self._base()):
            return data
        if not isinstance(data, dict):
            raise _error("registry_section", "a section of keys", (), data)
        data = self._in_full(data)
        kind = data.get("kind", self.default)
        if not isinstance(kind, str):
            found = "missing" if kind is None else f"found {json.dumps(kind, default=str)}"
            text = f"{found}, expected one of {', '.join(self.names())}, or path/to/file.py:Class"
            raise _error("kind_missing", text, ("kind",), kind)
        try:
            cls = self.find(kind, may_import=trusted)
        except PluginMissing as error:
            raise _error("plugin_missing", str(error), ("kind",), kind, file=str(error.file)) from None
        except UserError as error:
            raise _error("kind_unknown", str(error), ("kind",), kind) from None
        fields = {key: value for key, value in data.items() if key != "kind"}
        return pydantic.TypeAdapter(cls).validate_json(
            json.dumps(fields, default=str), strict=True, context={**(context or {}), TRUSTED: trusted}
        )

    def _in_full(self, data: dict[str, Any]) -> dict[str, Any]:
        """`data` with its kind, where it is of the short form."""
        self._import_built_in()
        for kind, field in self._short.items():
            if kind in data and data.get("kind", kind) == kind and field not in data:
                return {"kind": kind} | {field if key == kind else key: value for key, value in data.items()}
        return data

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        def read(data: Any, info: core_schema.ValidationInfo) -> T:
            context: Mapping[str, Any] = info.context or {}
            return self.parse(data, trusted=bool(context.get(TRUSTED, False)), context=context)

        def write(value: Any) -> dict[str, Any]:
            return {"kind": value.kind, **fields_of(value)}

        return core_schema.with_info_plain_validator_function(
            read, serialization=core_schema.plain_serializer_function_ser_schema(write)
        )

    def _import_built_in(self) -> None:
        with _importing:  # so another thread waits for the end of the imports
            if self._searched:
                return
            self._searched = True  # first, because a module that is being imported may call this
            package = importlib.import_module(self.package)
            for module in pkgutil.iter_modules(package.__path__):
                importlib.import_module(f"{self.package}.{module.name}")

    def _entry_points(self) -> dict[str, EntryPoint]:
        if self._offered is None:  # once: it reads a file of every package that is installed
            self._offered = {point.name: point for point in entry_points(group=self.group)}
        return self._offered

    def _of_package(self, kind: str, offered: EntryPoint) -> type[T]:
        try:
            cls = offered.load()
        except (Exception, SystemExit) as error:
            raise UserError(f"{self.what} {kind!r} of an installed package: {error!r}") from error
        package = offered.dist
        _packages[f"{self.group}:{kind}"] = f"{package.name} {package.version}" if package else offered.value
        return self._outside.setdefault(kind, self._checked(kind, cls))

    def _of_plugin(self, kind: str, path: Path, name: str, may_import: bool) -> type[T]:
        plugin = _plugins.get(path.name)
        if may_import:
            plugin = load_plugin(path)
        elif plugin is None:
            raise PluginMissing(
                path,
                f"{self.what} {kind!r} is not part of torch-nnue, and files do not make it import code: name the "
                f"file with --plugin {path}",
            )
        cls = getattr(plugin.module, name, None)
        if not isinstance(cls, type):
            raise UserError(f"{plugin.path}: has no class {name!r}")
        # The class is registered already by another path to the same file. It keeps the kind of its
        # first use.
        self._outside[kind] = cls if cls in self._outside.values() else self._checked(kind, cls)
        return self._outside[kind]

    def _checked(self, kind: str, cls: Any) -> type[T]:
        where = f"{self.what} {kind!r} ({cls.__module__}.{cls.__qualname__})"
        if not issubclass(cls, self._base()):
            raise UserError(f"{where}: expected a class derived from {self._base().__module__}.{self._base().__name__}")
        if "__pydantic_fields__" not in cls.__dict__:
            raise UserError(f"{where}: expected a section; decorate it with nnue_trainer.schema.section")
        if missing := sorted(getattr(cls, "__abstractmethods__", ())):
            raise UserError(f"{where}: does not define {', '.join(missing)}")
        if "kind" in cls.__pydantic_fields__:
            raise UserError(f"{where}: 'kind' names the class in a recipe and cannot be a field")
        cls.kind = kind
        checked: type[T] = cls
        return checked

    def __iter__(self) -> Iterator[tuple[str, type[T]]]:
        """Every class by kind: those of `kinds`, of installed packages, and all in files that were loaded."""
        for kind, offered in self._entry_points().items():
            if kind not in self.kinds():
                self._of_package(kind, offered)
        found = self.kinds()
        for plugin in _plugins.values():
            for name, cls in vars(plugin.module).items():
                is_ours = (
                    isinstance(cls, type) and issubclass(cls, self._base()) and cls.__module__ == plugin.module.__name__
                )
                if is_ours and "__pydantic_fields__" in cls.__dict__ and cls not in found.values():
                    found[f"{plugin.path}:{name}"] = cls
        return iter(sorted(found.items()))

    def __repr__(self) -> str:
        return f"Registry({self.group!r})"


def _error(kind: str, message: str, location: tuple[str, ...], found: Any, **context: str) -> ValidationError:
    custom = PydanticCustomError(kind, "{message}", {"message": message, **context})
    return ValidationError.from_exception_data(
        "registry", [InitErrorDetails(type=custom, loc=location, input=found)], input_type="json"
    )


def _line_of(error: BaseException, path: Path) -> str:
    """`:LINE` of the last place in the file that an error went through."""
    if isinstance(error, SyntaxError):
        return f":{error.lineno}"
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).name == path.name
    ]
    return f":{lines[-1]}" if lines else ""
