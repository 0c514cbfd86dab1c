"""What pyproject.toml cannot say: with LONGREACH_BINARY=PATH the wheel also holds that program, as the script
`longreach`, and is of this platform; without it the wheel is pure Python."""

import os
import shutil
import stat

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

from distutils.command.build_scripts import build_scripts  # setuptools brings it, also where Python has none

# Found in the program's directory when a command needs them: serve, and several ranks on a CPU.
MODULES = ["longreach_http.so", "longreach_gloo.so"]


def program():
    path = os.environ.get("LONGREACH_BINARY")
    if path:
        with open(path, "rb") as file:
            if file.read(4) != b"\x7fELF":
                raise SystemExit(f"LONGREACH_BINARY names {path}, which is not a program")
    return path


class BuildFresh(build):
    def finalize_options(self):
        super().finalize_options()
        # What an earlier build left here would enter this wheel. Another directory is the caller's.
        if self.build_base == "build":
            shutil.rmtree("build", ignore_errors=True)


class CopyProgram(build_scripts):
    """setuptools' own reads a script as text, and takes only one that lies in this directory."""

    def get_source_files(self):
        return []

    def run(self):
        os.makedirs(self.build_dir, exist_ok=True)
        folder = os.path.dirname(os.path.abspath(program()))
        for source, name in [(program(), "longreach"), *((os.path.join(folder, module), module) for module in MODULES)]:
            if os.path.isfile(source):
                target = os.path.join(self.build_dir, name)
                shutil.copyfile(source, target)
                os.chmod(target, os.stat(target).st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


class PlatformWheel(bdist_wheel):
    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        # Any Python 3: nothing here is linked to the interpreter.
        return ("py3", "none", super().get_tag()[2])


commands = {"build": BuildFresh}
if program():
    commands.update(build_scripts=CopyProgram, bdist_wheel=PlatformWheel)
setup(cmdclass=commands, scripts=["longreach"] if program() else [])
