#!/usr/bin/env python3
"""Reads the source tree and says where it breaks the rules of the house.

    check_tree.py arrows  [--root DIR]                 includes and CMake dependencies point downwards only; what is
                                                       loaded into others' processes includes next to nothing
    check_tree.py circles [--root DIR]                 no header of a room includes itself by way of others
    check_tree.py pure    [--root DIR]                 what decides has no clock, thread, socket, environment or dice
    check_tree.py layout  [--root DIR]                 each layer has a README; headers have their guard
    check_tree.py links   [--root DIR]                 links of pages lead to files and headings that are there
    check_tree.py headers [--root DIR] --build DIR     every header compiles alone (needs compile_commands.json); those
                          [--all]                      that changed of late, or with --all all of them
    check_tree.py examples [--root DIR] --build DIR    headers that docs/how-to-add.md shows compile
    check_tree.py locals  --build DIR                  sources that are compiled together share no local name

Prints one line a finding, `file:line: what is wrong`, and exits with 1 where there is any.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

# From the top of the house to its foundation: a layer may include itself and those after it.
LAYERS = ["cli", "roles", "server", "frontend", "research", "simulate", "controller", "repository", "worker", "tune", "hosts", "transport", "coordinator", "cluster",
          "provision", "explain", "dispatch", "schedule", "wire", "ledger", "share", "device", "engine", "graph", "workload", "profile", "base"]

# Rooms that may include less than what lies below them.
ONLY = {"research": ["research", "simulate", "workload", "profile", "base"],
        "device": ["device", "workload", "base"], "share": ["share", "device", "base"], "wire": ["wire", "ledger", "device", "graph", "workload", "base"],
        "dispatch": ["dispatch", "schedule", "wire", "ledger", "device", "workload", "profile", "base"]}

# A layer's rooms, from top to bottom: a room may include itself and those after it. Files outside of rooms, and tests,
# may include all.
ROOMS = {"frontend": ["grpc", "api", "admin", "http", "doors", "codec", "telemetry", "access", "memory", "net"],
         "controller": ["models", "gates", "calls"]}

# Rooms that are loaded into others' processes, and what of the program they may include: what the preloaded library
# has stands below malloc, and what torch loads needs the driver's table besides. Tests may include all.
GUESTS = [("share/client/cuda/", ("share/client/", "share/protocol.h", "share/cuda/driver.h")),
          ("share/client/", ("share/client/", "share/protocol.h")),
          ("share/cuda/driver.", ("share/cuda/driver.h",))]
# And nothing of the program includes them.
GUEST_ROOM = "share/client/"

# Rooms that only decide: events and times in, actions out.
PURE = ["research", "dispatch", "schedule", "wire", "ledger", "explain", "cluster", "provision", "tune", "device"]
# Folders within them that are shells around a core all the same; no core may include these.
SHELLS = ["schedule/symphony/threads"]
# Single files elsewhere that are decision cores, too.
PURE_FILES = ["engine/memory_planner", "hosts/member_core", "controller/core", "controller/calls/holder", "roles/agent", "roles/leader", "roles/offering", "roles/wanted_news"]
IMPURE = [
    (re.compile(r"\bnow\s*\(\s*\)"), "reads a clock; take the time as an argument"),
    (re.compile(r"carillon/base/clock\.h"), "includes a clock; take the time as an argument"),
    (re.compile(r"\b(steady|system|high_resolution)_clock\b|\bclock_gettime\b|\bgettimeofday\b"), "reads a clock"),
    (re.compile(r"#include\s*<(thread|mutex|shared_mutex|condition_variable|future|atomic|semaphore|latch|barrier)>"),
     "has threads or locks; a core has one owner"),
    (re.compile(r"\bstd::(jthread|thread|mutex|async)\b|\bpthread_"), "has threads or locks; a core has one owner"),
    (re.compile(r"#include\s*<(sys/socket|netinet/in|arpa/inet|unistd|boost/asio)[^>]*>"), "talks to the outside"),
    (re.compile(r"\b(getenv|secure_getenv)\b"), "reads the environment"),
    (re.compile(r"#include\s*<random>|\bstd::mt19937|\brand\s*\(\s*\)"), "draws its own random numbers"),
]

INCLUDE = re.compile(r'^\s*#\s*include\s*"carillon/([a-z_]+)/')
OTHER_QUOTED = re.compile(r'^\s*#\s*include\s*"(?!carillon/)([^"]+)"')


def sources(root, *suffixes):
    base = root / "src" / "carillon"
    return sorted(p for p in base.rglob("*") if p.suffix in suffixes)


def layer_of(root, path):
    return path.relative_to(root / "src" / "carillon").parts[0]


def code_lines(path):
    """Lines with comments and string literals blanked, numbered from one."""
    text = path.read_text(encoding="utf-8", errors="replace")
    blank = lambda m: re.sub(r"[^\n]", " ", m.group(0))
    text = re.sub(r"/\*.*?\*/", blank, text, flags=re.S)
    out = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.lstrip().startswith("#"):
            line = re.sub(r'"(\\.|[^"\\])*"', '""', line)
        out.append((number, re.sub(r"//.*", "", line)))
    return out


def check_arrows(root):
    findings = []
    rank = {name: i for i, name in enumerate(LAYERS)}
    for path in sources(root, ".h", ".cpp"):
        layer = layer_of(root, path)
        if layer not in rank:
            findings.append(f"{path}:1: '{layer}' is not a layer of the house: {', '.join(LAYERS)}")
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n"), 1):
            if match := INCLUDE.match(line):
                other = match.group(1)
                if other not in rank:
                    findings.append(f"{path}:{number}: includes unknown layer '{other}'")
                elif rank[other] < rank[layer]:
                    findings.append(f"{path}:{number}: '{layer}' includes '{other}', which lies above it")
                elif other not in ONLY.get(layer, LAYERS):
                    findings.append(f"{path}:{number}: '{layer}' includes '{other}', but may only include "
                                    f"{', '.join(ONLY[layer])}")
            elif (match := OTHER_QUOTED.match(line)) and not match.group(1).endswith((".pb.h",)):
                findings.append(f'{path}:{number}: include "{match.group(1)}" by its full path, "carillon/<layer>/..."')
    for cmake in sorted((root / "src" / "carillon").glob("*/CMakeLists.txt")):
        layer = cmake.parent.name
        for number, line in enumerate(cmake.read_text().split("\n"), 1):
            for other in re.findall(r"\bcarillon_([a-z]+)\b", line.split("#")[0]):
                if layer in rank and other in rank and rank[other] < rank[layer]:
                    findings.append(f"{cmake}:{number}: 'carillon_{layer}' depends on 'carillon_{other}', which lies above it")
                elif other in rank and other not in ONLY.get(layer, LAYERS):
                    findings.append(f"{cmake}:{number}: 'carillon_{layer}' depends on 'carillon_{other}', but may only "
                                    f"depend on {', '.join(ONLY[layer])}")
    return findings


def check_guests(root):
    findings = []
    base = root / "src" / "carillon"
    for path in sources(root, ".h", ".cpp"):
        name = path.relative_to(base).as_posix()
        if name.endswith("_test.cpp"):
            continue
        may = next((may for room, may in GUESTS if name.startswith(room)), None)
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n"), 1):
            match = re.match(r'\s*#\s*include\s*"carillon/([^"]+)"', line)
            if match and may is not None and not match.group(1).startswith(may):
                findings.append(f"{path}:{number}: is loaded into others' processes, and may only include {', '.join(may)}")
            elif match and match.group(1).startswith(GUEST_ROOM) and not name.startswith(GUEST_ROOM):
                findings.append(f"{path}:{number}: includes '{match.group(1)}', which is for others' processes alone")
    return findings


def check_rooms(root):
    findings = []
    base = root / "src" / "carillon"
    for path in sources(root, ".h", ".cpp"):
        layer, room, *_ = *path.relative_to(base).parts, ""
        rooms = ROOMS.get(layer, [])
        if room not in rooms or path.name.endswith("_test.cpp"):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n"), 1):
            match = re.match(rf'\s*#\s*include\s*"carillon/{layer}/([a-z]+)/', line)
            if match and match.group(1) not in rooms[rooms.index(room):]:
                findings.append(f"{path}:{number}: '{layer}/{room}' includes '{layer}/{match.group(1)}', which lies above it")
    return findings


def check_circles(root):
    """Header guards hide a circle: the headers then compile in one order and mean another in the other."""
    base = root / "src" / "carillon"
    includes = {}
    for path in sources(root, ".h"):
        room = layer_of(root, path)
        includes[str(path.relative_to(base))] = [
            (number, match.group(1)) for number, line in code_lines(path)
            if (match := re.match(rf'\s*#\s*include\s*"carillon/({room}/[^"]+)"', line))]
    findings, done = [], set()

    def walk(header, way):
        if header in done:
            return
        for number, other in includes.get(header, []):
            if other in way:
                circle = [*way[way.index(other):], other]
                findings.append(f"{base / header}:{number}: closes a circle of includes: {' -> '.join(circle)}")
            else:
                walk(other, [*way, other])
        done.add(header)

    for header in includes:
        walk(header, [header])
    return findings


def check_pure(root):
    findings = []
    for path in sources(root, ".h", ".cpp"):
        relative = path.relative_to(root / "src" / "carillon")
        is_file = any(str(relative.with_suffix("")) == name for name in PURE_FILES)
        if relative.parts[0] not in PURE and not is_file:
            continue
        if any(relative.is_relative_to(shell) for shell in SHELLS):
            continue
        for number, line in code_lines(path):
            for shell in SHELLS:
                if re.match(rf'\s*#\s*include\s*"carillon/{shell}/', line):
                    findings.append(f"{path}:{number}: a decision core includes {shell}, which is a shell around one")
            for pattern, why in IMPURE:
                if pattern.search(line):
                    findings.append(f"{path}:{number}: a decision core {why}")
    return findings


def check_layout(root):
    findings = []
    base = root / "src" / "carillon"
    for folder in sorted(p for p in base.iterdir() if p.is_dir()):
        if not (folder / "README.md").is_file():
            findings.append(f"{folder}:1: a layer says in README.md what lives here, who may include it and what to read first")
    for path in sources(root, ".h"):
        if "#pragma once" not in path.read_text(encoding="utf-8", errors="replace"):
            findings.append(f"{path}:1: a header begins with #pragma once")
    return findings


LINK = re.compile(r"\]\(([^)\s]+)\)")
MENTION = re.compile(r"\b(docs/[\w-]+\.md|bench/measured/[\w-]+\.md)(#[\w-]+)?")  # in comments and texts of any file
TEXTS = (".md", ".h", ".cpp", ".cu", ".py", ".pyi", ".txt", ".toml", ".cmake", ".js", ".yml", ".yaml", ".json", "")
WRITTEN = ("build", ".venv", ".git", "node_modules")  # folders whose files are not the project's


def headings(page):
    """The fragments by which a page's headings are linked to, as GitHub makes them."""
    found, fence = {}, False
    for line in page.read_text(encoding="utf-8").split("\n"):
        if line.startswith("```"):
            fence = not fence
        elif not fence and (match := re.match(r"#+ +(.*?)\s*$", line)):
            text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", match.group(1)).lower()
            name = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
            found[name] = found.get(name, -1) + 1
    return {name + (f"-{i}" if i else "") for name, times in found.items() for i in range(times + 1)}


def check_links(root):
    findings, known = [], {}

    def look(path, number, target, fragment):
        where = f"{path}:{number}"
        if not target.exists():
            findings.append(f"{where}: {target} is not there")
        elif fragment and target.suffix == ".md":
            known.setdefault(target, headings(target))
            if fragment not in known[target]:
                findings.append(f"{where}: {target} has no heading '{fragment}'")

    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in WRITTEN and (not f.startswith(".") or f == ".github"))
        for path in (pathlib.Path(folder) / name for name in sorted(names)):
            if path.suffix not in TEXTS or path.is_symlink() or path.stat().st_size > 1 << 20:
                continue
            fence = False
            for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n"), 1):
                fence ^= line.startswith("```")
                links = LINK.findall(line) if path.suffix == ".md" and not fence else []
                for link in links:
                    if not re.match(r"[a-z]+:", link):
                        name, _, fragment = link.partition("#")
                        target = pathlib.Path(os.path.normpath(path.parent / name)) if name else path
                        look(path, number, target, fragment)
                for name, fragment in MENTION.findall(LINK.sub("]", line)):
                    look(path, number, root / name, fragment[1:])
    return findings


# Where HEAD is main, headers that changed in so many commits are compiled: more than lands at a time.
LATE_COMMITS = 60


def changed_files(root):
    """What changed since the merge base with main, or in the last commits of main itself, and of these what lost an
    include; None where git cannot tell."""
    def git(*arguments):
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else None

    if git("rev-parse", "--show-toplevel") != str(root.resolve()):
        return None
    main = git("rev-parse", "--verify", "--quiet", "origin/main") or git("rev-parse", "--verify", "--quiet", "main")
    base = main and git("merge-base", main, "HEAD")
    if base == git("rev-parse", "HEAD"):
        base = git("rev-parse", "--verify", "--quiet", f"HEAD~{LATE_COMMITS}")
    changed = base and git("diff", "--name-only", base)
    if changed is None:
        return None
    names = [*changed.split("\n"), *(git("ls-files", "--others", "--exclude-standard") or "").split("\n")]
    lost_includes, name = set(), ""
    for line in (git("diff", "--unified=0", base) or "").split("\n"):
        if line.startswith("--- a/"):
            name = line.removeprefix("--- a/")
        elif re.match(r"-\s*#\s*include\b", line):
            lost_includes.add((root / name).resolve())
    return {(root / name).resolve() for name in names if name}, lost_includes


def reads(root, header, known):
    """The header and all headers of the project that it includes, directly or by way of others."""
    if header not in known:
        known[header] = {header}
        for _, line in code_lines(header):
            if match := re.match(r'\s*#\s*include\s*"(carillon/[^"]+)"', line):
                other = root / "src" / match.group(1)
                if other.is_file():
                    known[header] |= reads(root, other, known)
    return known[header]


def headers_to_compile(root):
    """A header leans on another's includes. One that is as it was compiles as it did, where none that it reads lost an
    include. (A declaration that moved to another header is not seen: `--all` compiles them all.)"""
    headers = sources(root, ".h")
    found = changed_files(root)
    if found is None:
        return headers
    changed, lost_includes = found
    known = {}
    return [header for header in headers if header.resolve() in changed
            or any(file.resolve() in lost_includes for file in reads(root, header, known))]


def header_command(root, build, header, commands, text=None):
    """Compiles the header alone; or the file `text` in its place."""
    layer = layer_of(root, header)
    # A source beside the header has what the header needs, such as another library's headers; else any of its layer.
    for marker in (f"{header.parent}/", f"/src/carillon/{layer}/"):
        entry = next((entry for entry in commands if marker in entry["file"]), None)
        if entry is not None:
            words = shlex.split(entry["command"])
            break
    else:  # a layer of headers only: our own include folder is enough
        words = ["c++", "-std=c++23", f"-I{root}/src"]
    flags, skip = [], False
    for word in words[1:]:
        if skip:
            skip = False
        elif word in ("-o", "-MF", "-MT", "-MQ"):
            skip = True
        elif word.startswith(("-I", "-D", "-std", "-f")) or word == "-isystem":
            flags.append(word)
        elif flags and flags[-1] == "-isystem":
            flags.append(word)
    compiler = next((w for w in words if re.search(r"(c\+\+|g\+\+|clang\+\+)(-\d+)?$", w)), "c++")
    return [compiler, *flags, "-fsyntax-only", "-x", "c++", "-include", str(text or header), os.devnull]


def compile_fault(root, build, header, commands, text=None):
    """The first error; None where it compiles."""
    done = subprocess.run(header_command(root, build, header, commands, text), capture_output=True, text=True, cwd=build)
    if done.returncode == 0:
        return None
    return next((l for l in done.stderr.split("\n") if "error" in l), done.stderr.strip()[:200])


def check_headers(root, build, everything=False):
    commands = json.loads((pathlib.Path(build) / "compile_commands.json").read_text())
    headers = sources(root, ".h") if everything else headers_to_compile(root)

    def compile_one(header):
        fault = compile_fault(root, build, header, commands)
        return [f"{header}:1: does not compile alone: {fault}"] if fault else []

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return [finding for found in pool.map(compile_one, headers) for finding in found]


EXAMPLE = re.compile(r"`([\w/]+\.h)`[^`\n]*\n\n```cpp\n(#pragma once\n.*?)^```", re.M | re.S)


def check_examples(root, build):
    """Headers of the page, each with the flags of the room that the line before it puts it into."""
    commands = json.loads((pathlib.Path(build) / "compile_commands.json").read_text())
    page = root / "docs/how-to-add.md"
    found = EXAMPLE.findall(page.read_text())
    findings = [] if found else [f"{page}:1: shows no header whose place is named before it"]
    for place, text in found:
        with tempfile.NamedTemporaryFile("w", suffix=".h") as file:
            file.write(text)
            file.flush()
            fault = compile_fault(root, build, root / "src/carillon" / place, commands, file.name)
        if fault:
            findings.append(f"{page}:1: {place} does not compile: {fault}")
    return findings


LOCAL_NAME = [re.compile(pattern) for pattern in (
    r"(?:struct|class|union|enum(?: class| struct)?)\s+(\w+)",
    r"using\s+(\w+)\s*=",
    r"[^=({]*?(\w+)\s*\(",                      # a function, or a variable made with ()
    r"[^=({;]*?(\w+)\s*(?:\[[^]]*\]\s*)*[={;]")]  # a variable


def local_names(path):
    """(namespace, name) -> line of what a source has in unnamed namespaces, as clang-format lays them out."""
    names, outer, inside = {}, "", False
    raw = path.read_text(encoding="utf-8", errors="replace").split("\n")
    for (number, line), whole in zip(code_lines(path), raw):
        if match := re.match(r"namespace ([\w:]+) \{", line):
            outer = match.group(1)
        elif line.startswith("namespace {"):
            inside = True
        elif whole.startswith("}  // namespace"):
            inside = False
        elif inside and re.match(r"(?!namespace\b|using namespace\b|using [\w:]+;|template\b)[A-Za-z_]", line):
            found = next(filter(None, (pattern.match(line) for pattern in LOCAL_NAME)), None)
            if found and not re.search(r"\boperator\b|^[A-Z_]+\(|^static_assert\b", line):  # nor a macro, as TEST()
                names.setdefault((outer, found.group(1)), number)
    return names


def check_locals(build):
    """Any two sources of a target may come to be compiled together, as its list grows."""
    findings = []
    targets = {}
    # Not all files that look like units: CMake leaves those of longer lists behind.
    commands = json.loads((pathlib.Path(build) / "compile_commands.json").read_text())
    for unit in (pathlib.Path(c["file"]) for c in commands if re.search(r"/Unity/unity_\d+_cxx\.cxx$", c["file"])):
        sources_of_unit = re.findall(r'^#include "(.*)"', unit.read_text(), flags=re.M)
        targets.setdefault(unit.parent.parent, []).extend(sources_of_unit)
    for files in targets.values():
        first = {}
        for path in map(pathlib.Path, files):
            if not path.is_file():
                continue  # generated, and not built yet
            for (namespace, name), number in local_names(path).items():
                if (namespace, name) in first:
                    findings.append(f"{path}:{number}: '{name}' is local to {first[namespace, name].name} too; "
                                    "the two are compiled together, so each needs a name of its own")
                first.setdefault((namespace, name), path)
    return findings


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("check", choices=["arrows", "circles", "pure", "layout", "links", "headers", "examples", "locals"])
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    parser.add_argument("--build", type=pathlib.Path)
    parser.add_argument("--all", action="store_true", help="headers: all of them, not those alone that changed")
    args = parser.parse_args()
    if not (args.root / "src" / "carillon").is_dir():
        parser.error(f"{args.root} has no src/carillon")
    if args.check in ("headers", "examples", "locals"):
        if not args.build:
            parser.error(f"{args.check} needs --build DIR, a configured build folder")
        findings = {"headers": lambda: check_headers(args.root, args.build, args.all),
                    "examples": lambda: check_examples(args.root, args.build),
                    "locals": lambda: check_locals(args.build)}[args.check]()
    else:
        findings = {"arrows": lambda root: check_arrows(root) + check_guests(root), "circles": check_circles, "pure": check_pure,
                    "layout": check_layout, "links": check_links}[args.check](args.root)
    print("\n".join(findings))
    print(f"{args.check}: {len(findings)} finding(s)", file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
