"""Build the simulated CANN: the sources in cann/, and a stub for every other symbol that torch_npu leaves undefined.

Usage: python tests/simnpu/build.py --site build/simnpu/site --lib build/simnpu/lib
Needs gcc, nm and readelf, and a Python that has torch. torch_npu is read as files from --site and never imported.
"""

import argparse
import hashlib
import importlib.util
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
SOURCES = sorted((HERE / "cann").glob("*.[ch]"))
# A vendor's function names more parameters than a simulation needs.
FLAGS = ["-std=gnu11", "-O2", "-fPIC", "-pthread", "-Wall", "-Wextra", "-Wno-unused-parameter"]
# The shared libraries of a CANN installation that torch_npu links to, and those that it opens by name.
VENDOR = re.compile(r"lib(hccl|ascend\w*|acl\w*|ge_\w+|graph|msprof\w*|atb|runtime|dcmi|fmk_parser)\.so$")
OPENED = {"libascendcl.so", "libopapi.so", "libhcomm.so"}
SYSTEM = re.compile(r"=> (\S+/(?:libc|libm|libstdc\+\+|libgcc_s|libpthread|libdl|librt)\.so\S*)")
NOT_CANN = ("Py", "_Py", "_ITM", "__")


def output(*command: str) -> str:
    """What a command prints; the tools here answer for a library without symbols by failing."""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def symbols(library: pathlib.Path, which: str) -> set[str]:
    """The dynamic symbols of a library that are `which` ("undefined" or "defined"), versions cut off."""
    listing = output("nm", "-D", f"--{which}-only", str(library))
    return {line.split()[-1].split("@")[0] for line in listing.splitlines()}


def needed(library: pathlib.Path) -> set[str]:
    """The libraries that a library links to."""
    return set(re.findall(r"NEEDED.*\[(.+)\]", output("readelf", "-d", str(library))))


def providers() -> list[pathlib.Path]:
    """The libraries of torch and of the system: what they define is no part of CANN."""
    torch = pathlib.Path(importlib.util.find_spec("torch").origin).parent
    system = SYSTEM.findall(output("ldconfig", "-p"))
    return [*torch.glob("lib/*.so*"), *torch.glob("_C*.so"), *map(pathlib.Path, system)]


def digest(site: pathlib.Path) -> str:
    """What the result depends on: this directory's sources and the wheel's list of files."""
    record = next(site.glob("torch_npu-*.dist-info")) / "RECORD"
    inputs = [*SOURCES, pathlib.Path(__file__), record]
    return hashlib.sha256(b"".join(path.read_bytes() for path in inputs)).hexdigest()


def compile_own(lib: pathlib.Path) -> list[pathlib.Path]:
    """Object files of our sources; a warning is shown, not hidden."""
    objects = []
    for source in SOURCES:
        if source.suffix == ".c":
            objects.append(lib / f"{source.stem}.o")
            subprocess.run(["gcc", *FLAGS, "-c", str(source), "-o", str(objects[-1])], check=True)
    return objects


def write_stubs(npu: list[pathlib.Path], own: list[pathlib.Path], target: pathlib.Path) -> int:
    """A C file in which every function that nobody provides answers 0; returns how many there are."""
    undefined = set().union(*(symbols(library, "undefined") for library in npu))
    provided = set().union(*(symbols(library, "defined") for library in [*npu, *providers()]))
    for item in own:
        provided |= {line.split()[-1] for line in output("nm", "--defined-only", str(item)).splitlines()}
    stubs = sorted(s for s in undefined - provided if re.fullmatch(r"\w+", s) and not s.startswith(NOT_CANN))
    target.write_text("".join(f"long {name}() {{ return 0; }}\n" for name in stubs))
    return len(stubs)


def link(lib: pathlib.Path, npu: list[pathlib.Path], objects: list[pathlib.Path], stubs: pathlib.Path) -> None:
    """One library under every name by which torch_npu asks for a part of CANN."""
    library = lib / "libsimcann.so"
    command = ["gcc", "-w", "-shared", "-fPIC", "-pthread", "-o", str(library), *map(str, objects), str(stubs)]
    subprocess.run(command, check=True)
    for name in {n for item in npu for n in needed(item) if VENDOR.match(n)} | OPENED:
        (lib / name).unlink(missing_ok=True)
        (lib / name).symlink_to(library.name)


def build(site: pathlib.Path, lib: pathlib.Path) -> bool:
    """Make `lib` from the sources and the torch_npu in `site`; False when there was nothing to do."""
    stamp, wanted = lib / "stamp", digest(site)
    if stamp.exists() and stamp.read_text() == wanted:
        return False
    lib.mkdir(parents=True, exist_ok=True)
    stamp.unlink(missing_ok=True)
    npu = sorted((site / "torch_npu").rglob("*.so"))
    objects = compile_own(lib)
    count = write_stubs(npu, objects, lib / "stubs.c")
    link(lib, npu, objects, lib / "stubs.c")
    stamp.write_text(wanted)
    print(f"{lib / 'libsimcann.so'}: {count} functions stubbed")
    return True


def main(arguments: list[str]) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--site", type=pathlib.Path, required=True, help="where pip install --target put torch_npu")
    parser.add_argument("--lib", type=pathlib.Path, required=True, help="where the libraries go")
    options = parser.parse_args(arguments)
    if not list(options.site.glob("torch_npu-*.dist-info")):
        parser.error(f"no torch_npu in {options.site}: pip install --no-deps --target {options.site} torch_npu==2.13.0")
    build(options.site, options.lib)


if __name__ == "__main__":
    main(sys.argv[1:])
