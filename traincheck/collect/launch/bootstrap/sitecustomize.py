"""Start of every Python process of a run: the user's sitecustomize first, then wait for torch.

Not a package: this folder is on PYTHONPATH and removes itself from sys.path. A process that never
imports torch imports no module of traincheck. Interpreters from Python 3.6 may run this file: use
only their syntax and annotations.
"""

import os
import sys
from _thread import get_ident

_HERE = os.path.dirname(os.path.abspath(__file__))


class _TorchFinder:
    """Finds torch like other finders, and starts the session at the end of its import."""

    def __init__(self, raw_settings: str) -> None:
        self._raw_settings = raw_settings
        self._searching: set = set()  # type: ignore[type-arg]  # threads that are in find_spec

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> object:
        thread = get_ident()
        if fullname != "torch" or thread in self._searching:
            return None
        self._searching.add(thread)  # another finder may ask the whole import system again
        try:
            spec = self._find_elsewhere(path, target)
        finally:
            self._searching.discard(thread)
        loader = getattr(spec, "loader", None)
        if hasattr(loader, "exec_module"):
            try:
                self._wrap(loader)
            except Exception as error:  # a loader with slots, an old Python
                _leave_note(self._raw_settings, error)
        return spec

    def _find_elsewhere(self, path: object, target: object) -> object:
        finders: list = list(sys.meta_path)  # type: ignore[type-arg]
        for finder in finders:
            find_spec = getattr(finder, "find_spec", None)
            if finder is self or find_spec is None:
                continue
            spec: object = find_spec("torch", path, target)
            if spec is not None:
                return spec
        return None

    def _wrap(self, loader: object) -> None:
        """Shadow the loader's exec_module on the instance: the module keeps its real loader."""
        original = loader.exec_module  # type: ignore[attr-defined]
        finder = self

        def exec_module(module: object) -> None:
            if getattr(module, "__name__", None) != "torch":  # a loader may serve several modules
                original(module)
                return
            loader.__dict__.pop("exec_module", None)
            original(module)
            finder.imported()

        # Python hides frames of this file: a failing import shows its usual traceback.
        code = exec_module.__code__.replace(co_filename="<frozen importlib._bootstrap>")
        exec_module.__code__ = code
        loader.exec_module = exec_module  # type: ignore[attr-defined]

    def imported(self) -> None:
        """Torch is imported: this finder has finished."""
        finders: list = sys.meta_path  # type: ignore[type-arg]
        if self in finders:
            finders.remove(self)
            _start(self._raw_settings)


def _start(raw_settings: str) -> None:
    try:
        import json

        _make_importable(json.loads(raw_settings)["package"])
        _see_to_own("orjson")
        _see_to_own("xxhash")
        from traincheck.collect.launch import settings
        from traincheck.collect.session import session

        found = settings.from_env({settings.VARIABLE: raw_settings})
        if found is not None:
            session.start(found)
    except Exception as error:  # a failure of traincheck must not reach the program
        _give_back(error)
        _leave_note(raw_settings, error)


def _give_back(error: Exception) -> None:
    """Raise the error again if a signal handler of the program raised it, as far as known."""
    give_back = getattr(sys.modules.get("traincheck.handlers"), "give_back", None)
    if give_back is not None:
        give_back(error)


def _make_importable(package: str) -> None:
    """Make ``import traincheck`` return the traincheck that launched the run.

    Only the package itself becomes importable, not its neighbors: the program must not find modules
    that its environment lacks.
    """
    if "traincheck" in sys.modules:
        return
    import importlib.util

    init = os.path.join(package, "__init__.py")
    found = importlib.util.find_spec("traincheck")
    origin = found.origin if found is not None else None
    if origin is not None:
        folder = os.path.dirname(os.path.realpath(origin))
        if folder == os.path.realpath(package):
            return
        if not os.path.exists(os.path.join(folder, "collect", "launch", "settings.py")):
            raise ImportError("another module named traincheck is found first: " + origin)
    spec = importlib.util.spec_from_file_location(
        "traincheck", init, submodule_search_locations=[package]
    )
    if spec is None or spec.loader is None:
        raise ImportError("cannot load " + init)
    module = importlib.util.module_from_spec(spec)
    sys.modules["traincheck"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules["traincheck"]
        raise


def _see_to_own(name: str) -> None:
    """Test that ``import name`` would return the required package, not a file of the program.

    Raises:
        ImportError: it would run such a file, which the program may never have run.
    """
    if name in sys.modules:
        return
    import importlib.util

    found = importlib.util.find_spec(name)
    if found is not None and not found.submodule_search_locations:
        raise ImportError(f"another module named {name} is found first: {found.origin}")


def _leave_note(raw_settings: str, error: Exception) -> None:
    """Leave a note for the launcher why this process has no events, if possible."""
    try:
        import json

        note = {
            "reason": f"{type(error).__name__}: {error}",
            "executable": sys.executable,
            "argv0": getattr(sys, "argv", [""])[0],
            "python": sys.version.split()[0],
        }
        folder = json.loads(raw_settings)["directory"]
        path = os.path.join(folder, f"not-traced-p{os.getpid()}.json")
        with open(
            path, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)
        ) as file:
            json.dump(note, file)
    except Exception:  # there is nobody to report to
        return


def _take_turn() -> None:
    """Arrange for the session of this process."""
    raw_settings = os.environ.get("TRAINCHECK_SETTINGS")
    if not raw_settings:
        return
    if "torch" in sys.modules:  # the user's sitecustomize or a .pth file was faster
        _start(raw_settings)
    else:
        sys.meta_path.insert(0, _TorchFinder(raw_settings))  # type: ignore[arg-type]


sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]
sys.path_importer_cache.pop(_HERE, None)
sys.modules.pop("sitecustomize", None)
try:
    # If there is none, this raises the error that site expects, and the name stays unknown.
    import sitecustomize  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
finally:
    _take_turn()
