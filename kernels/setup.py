"""A shared library beside the package: it is no module of Python, so that one wheel serves every Python and torch."""

from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

FLAGS = [
    "-std=gnu11",
    "-O3",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-strict-aliasing",
    "-fopenmp",
    "-fvisibility=hidden",
    "-Wall",
]
FLAGS += ["-Wno-psabi"]  # vectors are passed within functions that are compiled in place alone


class Library(build_ext):
    def get_ext_filename(self, fullname: str) -> str:
        *package, name = fullname.split(".")
        return str(Path(*package, f"lib{name}.so"))

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return []


class Wheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[
        Extension(
            "aotair_kernels.aotair_kernels",
            ["src/aotair_kernels.c"],
            depends=[str(one) for one in sorted(Path("src").glob("*.h"))],
            extra_compile_args=FLAGS,
            extra_link_args=["-fopenmp", "-lm"],
        )
    ],
    cmdclass={"build_ext": Library, "bdist_wheel": Wheel},
)
