#!/usr/bin/env python3
"""Shows that check_tree.py finds what it is there to find: each rule is broken once in a tree made for it."""
import json
import pathlib
import subprocess
import tempfile
import unittest

import check_tree


class CheckTree(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def test_arrows_down_are_fine(self):
        self.write("src/carillon/schedule/a.h", '#pragma once\n#include "carillon/base/time.h"\n')
        self.write("src/carillon/schedule/CMakeLists.txt", "DEPENDS carillon_base\n")
        self.assertEqual(check_tree.check_arrows(self.root), [])

    def test_arrows_up_are_found(self):
        self.write("src/carillon/schedule/a.h", '#include "carillon/worker/worker.h"\n')
        self.write("src/carillon/graph/CMakeLists.txt", "DEPENDS carillon_engine\n")
        found = check_tree.check_arrows(self.root)
        self.assertEqual(len(found), 2, found)

    def test_unknown_layers_and_short_includes_are_found(self):
        self.write("src/carillon/utils/a.h", "")
        self.write("src/carillon/base/b.h", '#include "c.h"\n')
        self.assertEqual(len(check_tree.check_arrows(self.root)), 2)

    def test_impure_cores_are_found(self):
        for i, line in enumerate(["auto t = clock.now();", "#include <thread>", "std::mutex m;", '#include <random>',
                                  'getenv("HOME");', '#include "carillon/base/clock.h"', "#include <sys/socket.h>"]):
            self.write(f"src/carillon/schedule/bad{i}.cpp", line + "\n")
        found = check_tree.check_pure(self.root)
        self.assertEqual(len({f.split(":")[0] for f in found}), 7, found)

    def test_the_device_core_is_held_to_its_rules_once_it_is_there(self):
        self.write("src/carillon/base/time.h", "#pragma once\n")
        self.assertEqual(check_tree.check_arrows(self.root) + check_tree.check_pure(self.root), [])
        self.write("src/carillon/device/CMakeLists.txt", "DEPENDS carillon_workload carillon_base\n")
        self.write("src/carillon/device/core.h", '#include "carillon/base/time.h"\n'
                                                 '#include "carillon/workload/request.h"\nint now_us;\n')
        self.assertEqual(check_tree.check_arrows(self.root) + check_tree.check_pure(self.root), [])
        planted = ["#include <thread>", "#include <mutex>", "#include <sys/socket.h>",
                   "auto t = std::chrono::steady_clock::now();", "auto t = std::chrono::system_clock::now();"]
        for i, line in enumerate(planted):
            self.write(f"src/carillon/device/bad{i}.h", line + "\n")
        found = check_tree.check_pure(self.root)
        self.assertEqual(len({f.split(":")[0] for f in found}), len(planted), found)

    def test_the_device_core_includes_workload_and_base_only(self):
        for i, other in enumerate(["profile", "graph", "engine", "schedule"]):
            self.write(f"src/carillon/device/bad{i}.h", f'#include "carillon/{other}/a.h"\n')
        self.write("src/carillon/device/CMakeLists.txt", "DEPENDS carillon_profile carillon_base\n")
        self.assertEqual(len(check_tree.check_arrows(self.root)), 5)
        # Above it are its shell for training jobs, the ledger, schedule, and what includes that; below, engine.
        at = check_tree.LAYERS.index("device")
        self.assertEqual(check_tree.LAYERS[at - 3:at + 2], ["wire", "ledger", "share", "device", "engine"])

    def test_the_broker_includes_device_and_base_only(self):
        for i, other in enumerate(["schedule", "workload", "engine", "worker"]):
            self.write(f"src/carillon/share/bad{i}.h", f'#include "carillon/{other}/a.h"\n')
        self.write("src/carillon/share/good.h", '#include "carillon/device/a.h"\n#include "carillon/base/a.h"\n')
        self.assertEqual(len(check_tree.check_arrows(self.root)), 4)

    def test_links_that_lead_nowhere_are_found(self):
        docs = "docs/"  # apart from the names, which are not those of pages of this tree
        self.write(docs + "a.md", "# A `page`, twice\n\n## Twice\n\n## Twice\n\n```\n# no heading, [no](link)\n```\n")
        good = [f"[a]({docs}a.md) [b]({docs}a.md#a-page-twice)", f"[c]({docs}a.md#twice-1) [d](#here) [e](https://x.org/y)"]
        self.write("README.md", "# Here\n" + "\n".join(good) + "\n")
        self.write("src/a.h", f"// {docs}a.md#twice says why\n")
        self.assertEqual(check_tree.check_links(self.root), [])
        self.write("README.md", f"[a]({docs}b.md) [b]({docs}a.md#twice-2)\n[c]({docs}a.md#no-heading-nolink) [d](#here)\n")
        self.write("src/a.h", f"// {docs}b.md says why\n")
        found = check_tree.check_links(self.root)
        self.assertEqual(len(found), 5, found)

    def test_what_is_loaded_into_other_processes_includes_little(self):
        self.write("src/carillon/share/client/shim.cpp", '#include "carillon/share/client/heap.h"\n'
                                                         '#include "carillon/share/protocol.h"\n')
        self.write("src/carillon/share/client/cuda/lanes.h", '#include "carillon/share/client/heap.h"\n'
                                                             '#include "carillon/share/cuda/driver.h"\n')
        self.write("src/carillon/share/client/cuda/lanes_test.cpp", '#include "carillon/share/broker.h"\n')
        self.write("src/carillon/share/cuda/driver.cpp", '#include "carillon/share/cuda/driver.h"\n')
        self.write("src/carillon/share/cuda/lanes.cpp", '#include "carillon/share/messages.h"\n')
        self.assertEqual(check_tree.check_guests(self.root), [])
        for name, other in [("client/wire.h", "share/cuda/driver.h"), ("client/heap.h", "base/result.h"),
                            ("client/cuda/allocator.cpp", "share/cuda/lanes.h"), ("cuda/driver.h", "base/bytes.h"),
                            ("cuda/lanes.cpp", "share/client/cuda/lanes.h")]:
            self.write(f"src/carillon/share/{name}", f'#include "carillon/{other}"\n')
        self.assertEqual(len(check_tree.check_guests(self.root)), 5)

    def test_rooms_of_a_layer_include_downwards(self):
        up = '#include "carillon/frontend/http/http_server.h"\n'
        self.write("src/carillon/frontend/frontend.h", up)
        self.write("src/carillon/frontend/codec/a_test.cpp", up)
        self.write("src/carillon/frontend/grpc/a.h", up + '#include "carillon/frontend/unheeded.h"\n')
        self.assertEqual(check_tree.check_rooms(self.root), [])
        self.write("src/carillon/frontend/codec/a.cpp", up)
        self.assertEqual(len(check_tree.check_rooms(self.root)), 1)

    def test_circles_of_includes_are_found(self):
        self.write("src/carillon/base/a.h", '#pragma once\n#include "carillon/base/b.h"\n')
        self.write("src/carillon/base/b.h", '#pragma once\n#include "carillon/base/sub/c.h"\n')
        self.write("src/carillon/base/sub/c.h", "#pragma once\n")
        self.write("src/carillon/base/c.cpp", '#include "carillon/base/a.h"\n')
        self.assertEqual(check_tree.check_circles(self.root), [])
        self.write("src/carillon/base/sub/c.h", '#pragma once\n#include "carillon/base/a.h"\n')
        found = check_tree.check_circles(self.root)
        self.assertEqual(len(found), 1, found)
        self.assertIn("base/a.h -> base/b.h -> base/sub/c.h -> base/a.h", found[0])

    def test_words_in_comments_and_strings_do_not_count(self):
        self.write("src/carillon/schedule/a.cpp", '// calls now() never\n/* std::mutex */ auto s = "std::thread";\n')
        self.write("src/carillon/worker/a.cpp", "std::mutex m; clock.now();\n")
        self.assertEqual(check_tree.check_pure(self.root), [])

    def test_a_shell_within_a_core_may_have_threads_and_no_core_includes_it(self):
        self.write("src/carillon/schedule/symphony/threads/shell.cpp", "#include <thread>\n")
        self.assertEqual(check_tree.check_pure(self.root), [])
        self.write("src/carillon/schedule/symphony/threads_not.cpp", "#include <thread>\n")
        self.write("src/carillon/schedule/registry.cpp", '#include "carillon/schedule/symphony/threads/shell.h"\n')
        found = check_tree.check_pure(self.root)
        self.assertEqual(len(found), 2, found)

    def test_missing_readme_is_found(self):
        self.write("src/carillon/base/a.h", "int a;\n")
        self.assertEqual(len(check_tree.check_layout(self.root)), 2)

    def test_a_header_that_leans_on_another_is_found(self):
        self.write("src/carillon/base/good.h", "#pragma once\n#include <vector>\ninline std::vector<int> v;\n")
        self.write("src/carillon/base/bad.h", "#pragma once\ninline std::vector<int> w;\n")
        build = self.root / "build"
        build.mkdir()
        (build / "compile_commands.json").write_text(json.dumps([]))
        found = check_tree.check_headers(self.root, build)
        self.assertEqual(len(found), 1, found)
        self.assertIn("bad.h", found[0])

    def test_examples_that_do_not_compile_are_found(self):
        self.write("src/carillon/base/good.h", "#pragma once\nusing Time = long;\n")
        self.write("build/compile_commands.json", "[]")
        page = "docs/" + "how-to-add.md"
        example = 'It is `base/a.h`:\n\n```cpp\n#pragma once\n#include "carillon/base/good.h"\ninline Time t;\n```\n'
        self.write(page, example)
        self.assertEqual(check_tree.check_examples(self.root, self.root / "build"), [])
        self.write(page, example + example.replace("a.h", "b.h").replace("Time t", "Timer t"))
        found = check_tree.check_examples(self.root, self.root / "build")
        self.assertEqual(len(found), 1, found)
        self.assertIn("base/b.h", found[0])
        self.write(page, "none\n")
        self.assertEqual(len(check_tree.check_examples(self.root, self.root / "build")), 1)

    def test_headers_are_compiled_where_they_changed_or_what_they_read_lost_an_include(self):
        def git(*arguments):
            subprocess.run(["git", "-C", str(self.root), "-c", "user.name=a", "-c", "user.email=a@b", *arguments],
                           check=True, capture_output=True)

        def chosen():
            return [header.name for header in check_tree.headers_to_compile(self.root)]

        self.write("src/carillon/base/a.h", "#pragma once\n")
        self.write("src/carillon/base/b.h", '#pragma once\n#include "carillon/base/a.h"\n')
        self.write("src/carillon/base/c.h", '#pragma once\n#include "carillon/base/b.h"\n')
        self.write("src/carillon/base/d.h", "#pragma once\n")
        self.assertEqual(chosen(), ["a.h", "b.h", "c.h", "d.h"])  # no repository: nobody knows what changed
        git("init", "--initial-branch", "main")
        git("add", ".")
        git("commit", "--message", "first")
        self.assertEqual(chosen(), ["a.h", "b.h", "c.h", "d.h"])  # a short history says nothing either
        git("checkout", "-b", "work")
        git("commit", "--allow-empty", "--message", "nothing")
        self.assertEqual(chosen(), [])
        self.write("src/carillon/base/b.h", '#pragma once\n#include "carillon/base/a.h"\n#include <map>\n')
        self.assertEqual(chosen(), ["b.h"])
        self.write("src/carillon/base/b.h", "#pragma once\n")
        self.assertEqual(chosen(), ["b.h", "c.h"])
        git("commit", "--all", "--message", "second")
        self.write("src/carillon/base/e.h", "#pragma once\n")
        self.assertEqual(chosen(), ["b.h", "c.h", "e.h"])

    def test_local_names_of_sources_that_are_compiled_together_are_found(self):
        self.write("a.cpp", "namespace x {\nnamespace {\nstruct Reader {\n  int depth;\n};\nconstexpr int most = 3;\n"
                            "template <typename T>\nT read(T t) {\n  return t;\n}\nint table[2] = {};\n"
                            "using std::size_t;\nint own;\n}  // namespace\nint shared();\n}  // namespace x\n")
        self.write("b.cpp", "namespace x {\nnamespace {\nclass Reader;\nconst double most{3};\nint read(int a,\n"
                            "         int b);\nint table[3];\nusing std::size_t;\n}  // namespace\n"
                            "int shared(int);\n}  // namespace x\n")
        self.write("c.cpp", "namespace y {\nnamespace {\nint own;\n}  // namespace\n}  // namespace y\n")
        unit = "".join(f'#include "{self.root / name}"\n' for name in ("a.cpp", "b.cpp", "c.cpp"))
        self.write("build/l.dir/Unity/unity_0_cxx.cxx", unit)
        self.write("build/l.dir/Unity/unity_1_cxx.cxx", '#include "/gone.cpp"')
        self.write("build/compile_commands.json",
                   json.dumps([{"file": f"{self.root}/build/l.dir/Unity/unity_0_cxx.cxx"}]))
        found = check_tree.check_locals(self.root / "build")
        self.assertEqual([f.split("'")[1] for f in found], ["Reader", "most", "read", "table"], found)


if __name__ == "__main__":
    unittest.main()
