"""Which environment does a process need to have the simulated device? Runs a command in it, too.

Usage: python tests/simnpu/run.py --site build/simnpu/site --lib build/simnpu/lib -- python -m pytest tests/simnpu
"""

import argparse
import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent


def environment(lib: pathlib.Path, site: pathlib.Path, base: dict[str, str] | None = None) -> dict[str, str]:
    """`base` (this process's environment) with what torch_npu over the simulated CANN needs.

    `site` must be on no other process's path: where torch_npu can be found, `import torch` loads it.
    """
    result = dict(os.environ if base is None else base)
    paths = [str(pathlib.Path(site).resolve()), str(HERE), result.get("PYTHONPATH", "")]
    libraries = [str(pathlib.Path(lib).resolve()), result.get("LD_LIBRARY_PATH", "")]
    result["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    result["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, libraries))
    result["TASK_QUEUE_ENABLE"] = "0"  # torch_npu's own thread would issue kernels behind the simulator's back
    result["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "1"
    return result


def main(arguments: list[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--site", type=pathlib.Path, required=True)
    parser.add_argument("--lib", type=pathlib.Path, required=True)
    parser.add_argument("command", nargs="+", help="after --")
    options = parser.parse_args(arguments)
    return subprocess.run(options.command, env=environment(options.lib, options.site), check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
