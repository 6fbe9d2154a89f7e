"""Which environment does a process need to have the simulated device? Runs a command in it, too.

Usage: python tests/simnpu/run.py --site build/simnpu/site --lib build/simnpu/lib -- python -m pytest tests/simnpu

With --install VERSION it first installs that torch_npu into --site and builds --lib; where that is impossible it says
why, runs nothing and succeeds, or fails with --required.
"""

import argparse
import os
import pathlib
import platform
import shutil
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


def install(version: str, site: pathlib.Path, lib: pathlib.Path) -> str:
    """Install torch_npu into `site` and build `lib`; returns why that is impossible here, or nothing."""
    machine = f"{platform.system()} {platform.machine()}"
    if machine != "Linux x86_64":
        return f"torch_npu's wheel is for x86-64 Linux, this is {machine}"
    missing = [tool for tool in ("gcc", "nm", "readelf") if shutil.which(tool) is None]
    if missing:
        return f"there is no {' and no '.join(missing)}"
    if not list(site.glob(f"torch_npu-{version}*.dist-info")):
        shutil.rmtree(site, ignore_errors=True)
        wheel = f"torch_npu=={version}"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), wheel]
        done = subprocess.run(pip, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"{wheel} does not install here: {done.stderr.strip().splitlines()[-1]}"
    import build

    build.build(site, lib)
    return ""


def main(arguments: list[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--site", type=pathlib.Path, required=True)
    parser.add_argument("--lib", type=pathlib.Path, required=True)
    parser.add_argument("--install", metavar="VERSION", help="install this torch_npu first")
    parser.add_argument("--required", action="store_true", help="fail where that is impossible")
    parser.add_argument("command", nargs="+", help="after --")
    options = parser.parse_args(arguments)
    if options.install and (reason := install(options.install, options.site, options.lib)):
        print(f"NOT RUN, because there can be no simulated NPU here: {' '.join(options.command)}\n  {reason}")
        return int(options.required)
    return subprocess.run(options.command, env=environment(options.lib, options.site), check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
