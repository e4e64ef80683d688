"""Fails if one of the kernels, compiled for any device, neither loads nor stores 16 bytes at once.

usage: check_sass.py CUOBJDUMP FATBIN     (nvdisasm beside it)
"""
import os
import re
import subprocess
import sys

# Takes the low half of each number, and loads that alone; writes one word.
NARROW = {"carillon_cast_i64_i32", "carillon_mark"}


def main():
    cuobjdump, fatbin = sys.argv[1:]
    path = os.path.dirname(cuobjdump) + os.pathsep + os.environ.get("PATH", "")
    text = subprocess.run([cuobjdump, "-sass", fatbin], check=True, capture_output=True, text=True,
                          env=os.environ | {"PATH": path}).stdout
    kernels, missing, architecture, name, wide = 0, [], "?", None, False

    def end():
        if name and not wide and name not in NARROW:
            missing.append(f"{name} ({architecture})")

    for line in text.splitlines():
        if found := re.match(r"arch = (\S+)", line):
            end()
            architecture, name = found[1], None
        elif found := re.match(r"\s*Function : (\S+)", line):
            end()
            name, wide = found[1], False
            kernels += 1
        elif re.search(r"\b(LDG|STG|LD|ST)\.[A-Z0-9.]*128\b", line):
            wide = True
    end()
    print(f"{kernels} kernels")
    if not kernels or missing:
        sys.exit("no access of 16 bytes: " + (", ".join(missing) or "there are no kernels at all"))


main()
