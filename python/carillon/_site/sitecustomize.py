"""Python imports this at its start where `carillon run`, or a TrialGroup, put the folder first in PYTHONPATH: makes
ready for torch, then does what another sitecustomize would have done."""

import importlib.util
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
_package = os.path.dirname(_here)
sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != _here]


class _Carillon:
    """`import carillon` works in the script, installed or not; an installed one goes first."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "carillon":
            return None
        return importlib.util.spec_from_file_location(
            name, os.path.join(_package, "__init__.py"), submodule_search_locations=[_package])


def _install(torch):
    from carillon import _hooks

    _hooks.install(torch)


if os.environ.get("CARILLON_TUNE_SOCKET"):  # a command of a TrialGroup
    sys.meta_path.append(_Carillon)
    from carillon.tune import _process

    _process.join_script()
elif os.environ.get("CARILLON_SOCKET") or os.environ.get("CARILLON_ALONE"):
    sys.meta_path.append(_Carillon)
    from carillon._import_hook import after_import

    after_import("torch", _install)

del sys.modules["sitecustomize"]
try:
    import sitecustomize  # noqa: F401  the one of the system or of the user, if there is one
except ModuleNotFoundError as error:
    if error.name != "sitecustomize":
        raise
    sys.modules["sitecustomize"] = sys.modules.get("sitecustomize") or type(sys)("sitecustomize")
