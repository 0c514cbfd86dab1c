"""What pyproject.toml cannot say: with LONGREACH_PREFIX=DIRECTORY, in which `cmake --install` has put the program, the wheel
holds all of it and is of this platform (tools/wheel); without it the wheel is pure Python."""

import os
import shutil
import stat

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build

from distutils.command.build_scripts import build_scripts  # setuptools brings it, also where Python has none

PREFIX = os.environ.get("LONGREACH_PREFIX", "")


def program():
    path = os.path.join(PREFIX, "bin", "longreach")
    with open(path, "rb") as file:
        if file.read(4) != b"\x7fELF":
            raise SystemExit(f"{path} is not a program")
    return path


def other_files():
    for folder, _, names in os.walk(PREFIX):
        place = os.path.relpath(folder, PREFIX)
        if names and place != "bin":
            yield place, [os.path.relpath(os.path.join(folder, name)) for name in names]  # setuptools takes no others


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
        target = os.path.join(self.build_dir, "longreach")
        shutil.copyfile(program(), target)
        os.chmod(target, os.stat(target).st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


class PlatformWheel(bdist_wheel):
    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        # Any Python 3: nothing here is linked to the interpreter.
        return ("py3", "none", super().get_tag()[2])


commands = {"build": BuildFresh}
if PREFIX:
    program()
    commands.update(build_scripts=CopyProgram, bdist_wheel=PlatformWheel)
    setup(cmdclass=commands, scripts=["longreach"], data_files=list(other_files()))
else:
    setup(cmdclass=commands)
