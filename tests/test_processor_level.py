"""tools/processor-level: programs, threads and children see the level, and keep their own handlers of SIGSEGV."""
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
TOOL = ROOT / "tools/processor-level"

pytestmark = pytest.mark.skipif(
    "cpuid_fault" not in pathlib.Path("/proc/cpuinfo").read_text() or shutil.which("cc") is None,
    reason="the processor cannot make CPUID fault, or there is no C compiler")

PROGRAM = r"""
#include <cpuid.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

// As functions with clones for several processors are chosen: by the loader, before the program begins.
static int one(void) { return 1; }
static int three(void) { return 3; }
static int four(void) { return 4; }
static int (*choose(void))(void) {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512bw") ? four : __builtin_cpu_supports("avx2") ? three : one;
}
int clone_of(void) __attribute__((ifunc("choose")));
static void show(const char* where) {
  unsigned a, b, c, d, a1, rest;
  __cpuid_count(7, 0, a, b, c, d);
  __cpuid_count(7, 1, a1, rest, rest, rest);
  printf("%s avx2=%d avx512=%d vnni=%d avx_vnni=%d amx=%d clone=%d\n", where, b >> 5 & 1, b >> 16 & 1, c >> 11 & 1,
         a1 >> 4 & 1, d >> 24 & 1, clone_of());
}
static jmp_buf before;
static void handler(int number) { longjmp(before, number); }
static void* thread(void* nothing) {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, NULL);
  show("thread");
  return nothing;
}
int main(int argc, char** argv) {
  show("program");
  pthread_t other;
  pthread_create(&other, NULL, thread, NULL);
  pthread_join(other, NULL);
  signal(SIGSEGV, handler);
  if (setjmp(before) == 0) *(volatile int*)8 = 1;
  show("handled");
  signal(SIGSEGV, SIG_DFL);
  fflush(stdout);
  if (argc > 1 && argv[1][0] == 'f') *(volatile int*)8 = 1;
  if (argc > 1) return 0;
  setenv("AGAIN", argv[0], 1);
  return system("\"$AGAIN\" no");
}
"""
SEEN = {"sse4": "avx2=0 avx512=0 vnni=0 avx_vnni=0 amx=0 clone=1",
        "avx2": "avx2=1 avx512=0 vnni=0 avx_vnni=0 amx=0 clone=3",
        "avx512": "avx2=1 avx512=1 vnni=0 avx_vnni=0 amx=0 clone=4",
        "avx512_vnni": "avx2=1 avx512=1 vnni=1 avx_vnni=0 amx=0 clone=4"}


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("level")
    (folder / "program.c").write_text(PROGRAM)
    subprocess.run(["cc", "-O1", "-pthread", "-o", folder / "program", folder / "program.c"], check=True)
    return folder / "program"


def run(*command, **options):
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=60, **options)


@pytest.mark.parametrize("level", SEEN)
def test_all_see_the_level(program, level):
    flags = pathlib.Path("/proc/cpuinfo").read_text()
    needs = {"avx512": "avx512bw", "avx512_vnni": "avx512_vnni"}.get(level, "avx2")
    if needs not in flags:
        pytest.skip(f"the processor has no {needs}")
    done = run(TOOL, level, "--", program)
    assert done.returncode == 0, done.stderr
    # The program, and the one that it starts: main, a thread that blocks all signals, and behind a handled fault.
    assert done.stdout.splitlines() == [f"{where} {SEEN[level]}" for where in ("program", "thread", "handled")] * 2


def test_other_faults_end_the_program(program):
    done = run(TOOL, "avx2", "--", program, "fault")
    assert done.returncode == -11


def test_says_what_is_missing():
    done = run(TOOL, "avx9", "--", "true")
    assert done.returncode == 2 and "avx512_vnni" in done.stderr
    done = run(TOOL, "avx2")
    assert done.returncode == 2 and "command is missing" in done.stderr
