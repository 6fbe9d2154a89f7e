"""Are the runtime's tests and the benchmarks to be run on a GPU here? Runs them, or says plainly why not."""

import subprocess
import sys

import torch

LEAST = (2, 11)


def reason() -> str:
    """Why there is nothing to run, or nothing."""
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no CUDA device"
    if tuple(map(int, torch.__version__.split(".")[:2])) < LEAST:
        return f"torch {torch.__version__} is older than {'.'.join(map(str, LEAST))}"
    return ""


def main() -> int:
    if why := reason():
        print(f"NOT RUN, because there is no GPU to run on: tests/runtime and benchmarks.device\n  {why}")
        return 0
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "--long", "--devices", "cuda", "tests/runtime"], check=False
    )
    if tests.returncode:
        return tests.returncode
    return subprocess.run([sys.executable, "-m", "benchmarks.device", "--device", "cuda"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
