"""Answers SGLang's imports of torchvision, which nothing here uses and whose only builds bring CUDA.

Python imports `sitecustomize` by itself in every process, so a directory on PYTHONPATH is all that is needed. Whoever asks
whether torchvision is there (transformers does, through `find_spec`) still hears no; only a plain `import` finds the empty
modules below.
"""

import enum
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType

MODULES = {
    "torchvision",
    "torchvision.io",
    "torchvision.transforms",
    "torchvision.transforms.functional",
    "torchvision.transforms.v2",
    "torchvision.transforms.v2.functional",
}
INTERPOLATIONS = ("NEAREST", "NEAREST_EXACT", "BILINEAR", "BICUBIC", "BOX", "HAMMING", "LANCZOS")
InterpolationMode = enum.Enum("InterpolationMode", {name: name.lower() for name in INTERPOLATIONS})  # type: ignore[misc]


class TorchvisionStandin(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds and fills the modules; the names are those that SGLang imports from them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if fullname in MODULES else None

    def exec_module(self, module: ModuleType) -> None:
        contents: dict[str, object] = {"__version__": "0.0.0"}
        if module.__name__ == "torchvision.io":
            contents["decode_jpeg"] = None
        if module.__name__ in ("torchvision.transforms", "torchvision.transforms.functional"):
            contents["InterpolationMode"] = InterpolationMode
        vars(module).update(contents)


def _find_spec_without_torchvision(name: str, package: str | None = None) -> importlib.machinery.ModuleSpec | None:
    return None if name.partition(".")[0] == "torchvision" else _find_spec(name, package)


sys.meta_path.append(TorchvisionStandin())
_find_spec = importlib.util.find_spec
importlib.util.find_spec = _find_spec_without_torchvision
