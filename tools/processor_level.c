// Makes CPUID tell programs less than the processor has: see tools/processor-level.
//
// arch_prctl(ARCH_SET_CPUID, 0) makes the instruction fault, in the calling thread and those that it starts
// from then on, until the process executes another program. The handler of SIGSEGV recognises it, executes
// it with faulting switched off, takes away the bits of what is beyond the level, and goes on behind it.
//
// The same source is two libraries:
// - PART_audit, for LD_AUDIT: the loader initialises it before it relocates the program, and so before the
//   resolvers of functions with clones for several processors (target_clones) ask. It uses no library.
// - PART_preload, for LD_PRELOAD: stands before the C library's functions about signals, so that the program
//   can neither take the handler away nor block SIGSEGV, which would kill it at the next CPUID. A handler
//   that the program installs is called for all other faults.
//
// What escapes: statically linked programs; /proc/cpuinfo; XGETBV; what asks before (the loader, for the C
// library's own choices); programs that make system calls about signals themselves.
#define _GNU_SOURCE
#include <asm/prctl.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <ucontext.h>

static const char variable[] = "CARILLON_PROCESSOR_LEVEL=";

static long call(long number, long a, long b, long c, long d) {
  long result;
  register long r10 __asm__("r10") = d;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10)
                   : "rcx", "r11", "memory");
  return result;
}
static void set_faulting(int faults) { call(SYS_arch_prctl, ARCH_SET_CPUID, !faults, 0, 0); }

// --- What a level has not

#define BIT(n) (1u << (n))
// Leaf 7, subleaf 0.
enum {
  b_avx2 = BIT(5),
  b_avx512_skylake = BIT(16) | BIT(17) | BIT(28) | BIT(30) | BIT(31),  // F, DQ, CD, BW, VL
  b_avx512_later = BIT(21) | BIT(26) | BIT(27),                        // IFMA, PF, ER
  c_avx512_vnni = BIT(11),
  c_avx512_later = BIT(1) | BIT(6) | BIT(12) | BIT(14),  // VBMI, VBMI2, BITALG, VPOPCNTDQ
  c_vector_crypto = BIT(8) | BIT(9) | BIT(10),           // GFNI, VAES, VPCLMULQDQ
  d_avx512_later = BIT(2) | BIT(3) | BIT(8) | BIT(23),   // 4VNNIW, 4FMAPS, VP2INTERSECT, FP16
  d_amx = BIT(22) | BIT(24) | BIT(25),                   // BF16, TILE, INT8
};
// Leaf 7, subleaf 1.
enum {
  a1_avx_vnni = BIT(4),
  a1_later = BIT(5) | BIT(21) | BIT(23),                       // AVX512_BF16, AMX_FP16, AVX_IFMA
  d1_later = BIT(4) | BIT(5) | BIT(8) | BIT(10) | BIT(19),     // VNNI_INT8, NE_CONVERT, AMX_COMPLEX, VNNI_INT16, AVX10
};
// Leaf 1, register C.
enum { c_leaf1_avx = BIT(12) | BIT(28) | BIT(29) };  // FMA, AVX, F16C

struct registers {
  uint32_t a, b, c, d;
};
enum level { unknown, sse4, avx2, avx2_vnni, avx512, avx512_vnni };
static enum level level_now;

static void take_away(uint32_t leaf, uint32_t subleaf, struct registers* r) {
  const int narrow = level_now == sse4 || level_now == avx2 || level_now == avx2_vnni;
  if (leaf == 1 && level_now == sse4) r->c &= ~(uint32_t)c_leaf1_avx;
  if (leaf == 7 && subleaf == 0) {
    if (level_now == sse4) {
      r->b &= ~(uint32_t)b_avx2;
      r->c &= ~(uint32_t)c_vector_crypto;
    }
    if (narrow) r->b &= ~(uint32_t)(b_avx512_skylake | b_avx512_later);
    if (narrow) r->c &= ~(uint32_t)(c_avx512_vnni | c_avx512_later);
    if (level_now == avx512) r->b &= ~(uint32_t)b_avx512_later;
    if (level_now == avx512) r->c &= ~(uint32_t)(c_avx512_vnni | c_avx512_later | c_vector_crypto);
    r->d &= ~(uint32_t)(d_avx512_later | d_amx);
  }
  if (leaf == 7 && subleaf == 1) {
    if (level_now != avx2_vnni) r->a &= ~(uint32_t)a1_avx_vnni;
    r->a &= ~(uint32_t)a1_later;
    r->d &= ~(uint32_t)d1_later;
  }
  // What XSAVE can save: the states of AMX (17, 18), of AVX-512 (5 to 7), of AVX (2).
  if (leaf == 0xd && subleaf == 0) {
    r->a &= ~(BIT(17) | BIT(18));
    if (narrow) r->a &= ~(BIT(5) | BIT(6) | BIT(7));
    if (level_now == sse4) r->a &= ~BIT(2);
  }
  if (leaf == 0x1d || leaf == 0x1e || leaf == 0x24) *r = (struct registers){0, 0, 0, 0};  // tiles, AVX10
}

// --- The fault

// As the kernel has it: the C library's sigaction is another.
struct kernel_action {
  void (*handler)(int, siginfo_t*, void*);
  unsigned long flags;
  void (*restorer)(void);
  unsigned long mask;
};
enum { kernel_restorer = 0x04000000, mask_bytes = 8 };
static void handle(int signal, siginfo_t* info, void* context);
void processor_level_restore(void) __attribute__((visibility("hidden")));
__asm__(
    ".text\n.hidden processor_level_restore\n.globl processor_level_restore\nprocessor_level_restore:\n"
    "  mov $15, %eax\n  syscall\n");  // rt_sigreturn

static void install(int first) {
  // Without SA_NODEFER a handler of the program's could not ask for the processor.
  struct kernel_action action = {handle, SA_SIGINFO | SA_ONSTACK | SA_NODEFER | kernel_restorer,
                                 processor_level_restore, 0};
  call(SYS_rt_sigaction, SIGSEGV, (long)&action, 0, mask_bytes);
  if (first) set_faulting(1);
}

static void forward(int signal, siginfo_t* info, void* context);

static void handle(int signal, siginfo_t* info, void* context) {
  greg_t* const r = ((ucontext_t*)context)->uc_mcontext.gregs;
  // A protection fault, not one of addresses: the instruction can be read.
  if (info->si_code == SI_KERNEL) {
    const unsigned char* const at = (const unsigned char*)r[REG_RIP];
    if (at[0] == 0x0f && at[1] == 0xa2) {
      const uint32_t leaf = (uint32_t)r[REG_RAX], subleaf = (uint32_t)r[REG_RCX];
      struct registers found;
      set_faulting(0);
      __asm__ volatile("cpuid"
                       : "=a"(found.a), "=b"(found.b), "=c"(found.c), "=d"(found.d)
                       : "a"(leaf), "c"(subleaf));
      set_faulting(1);
      take_away(leaf, subleaf, &found);
      r[REG_RAX] = found.a;
      r[REG_RBX] = found.b;
      r[REG_RCX] = found.c;
      r[REG_RDX] = found.d;
      r[REG_RIP] += 2;
      return;
    }
  }
  forward(signal, info, context);
}

static int equal(const char* a, const char* b) {
  while (*a != 0 && *a == *b) ++a, ++b;
  return *a == *b;
}
static void start(char** environment, int first) {
  static const struct {
    const char* name;
    enum level level;
  } names[] = {{"sse4", sse4},     {"avx2", avx2}, {"avx2_vnni", avx2_vnni},
               {"avx512", avx512}, {"avx512_vnni", avx512_vnni}};
  for (char** line = environment; *line != NULL; ++line) {
    const char* at = *line;
    const char* want = variable;
    while (*want != 0 && *at == *want) ++at, ++want;
    if (*want != 0) continue;
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i)
      if (equal(at, names[i].name)) level_now = names[i].level;
  }
  if (level_now != unknown) install(first);
}

#ifdef PART_audit

// Before the program runs nobody has a handler: the second of the same fault ends the process.
static void forward(int signal, siginfo_t* info, void* context) {
  (void)info, (void)context;
  struct kernel_action action = {NULL, kernel_restorer,
                                 processor_level_restore, 0};
  call(SYS_rt_sigaction, signal, (long)&action, 0, mask_bytes);
}

static void begin(int argc, char** argv, char** environment) {
  (void)argc, (void)argv;
  start(environment, 1);
}
__attribute__((section(".init_array"), used)) static void (*const at_start)(int, char**, char**) = begin;

// The loader's protocol (rtld-audit(7)): any version that it offers will do, since nothing is watched.
unsigned la_version(unsigned version) { return version; }

#else

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

static struct sigaction programs;  // the action that the program believes SIGSEGV to have

static void forward(int signal, siginfo_t* info, void* context) {
  const struct sigaction action = programs;
  if (action.sa_flags & SA_SIGINFO) return action.sa_sigaction(signal, info, context);
  if (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN) return action.sa_handler(signal);
  struct kernel_action plain = {NULL, kernel_restorer,
                                processor_level_restore, 0};
  call(SYS_rt_sigaction, signal, (long)&plain, 0, mask_bytes);
  // One that another process sent does not come again by itself.
  if (info->si_code <= 0) call(SYS_tgkill, call(SYS_getpid, 0, 0, 0, 0), call(SYS_gettid, 0, 0, 0, 0), signal, 0);
}

__attribute__((constructor)) static void begin(int argc, char** argv, char** environment) {
  (void)argc, (void)argv;
  start(environment, 0);
}

int sigaction(int signal, const struct sigaction* action, struct sigaction* before) {
  static int (*real)(int, const struct sigaction*, struct sigaction*);
  if (signal == SIGSEGV && level_now != unknown) {
    const struct sigaction was = programs;
    if (action != NULL) programs = *action;
    if (before != NULL) *before = was;
    return 0;
  }
  if (real == NULL) real = (int (*)(int, const struct sigaction*, struct sigaction*))dlsym(RTLD_NEXT, "sigaction");
  if (action == NULL || !sigismember(&action->sa_mask, SIGSEGV) || level_now == unknown)
    return real(signal, action, before);
  struct sigaction open = *action;
  sigdelset(&open.sa_mask, SIGSEGV);
  return real(signal, &open, before);
}

typedef void (*simple_handler)(int);
simple_handler signal(int number, simple_handler handler) {
  static simple_handler (*real)(int, simple_handler);
  if (number == SIGSEGV && level_now != unknown) {
    const struct sigaction was = programs;
    memset(&programs, 0, sizeof programs);
    programs.sa_handler = handler;
    return was.sa_handler;
  }
  if (real == NULL) real = (simple_handler (*)(int, simple_handler))dlsym(RTLD_NEXT, "signal");
  return real(number, handler);
}

static const sigset_t* without(int how, const sigset_t* set, sigset_t* room) {
  if (set == NULL || how == SIG_UNBLOCK || level_now == unknown) return set;
  *room = *set;
  sigdelset(room, SIGSEGV);
  return room;
}
int sigprocmask(int how, const sigset_t* set, sigset_t* before) {
  static int (*real)(int, const sigset_t*, sigset_t*);
  sigset_t room;
  if (real == NULL) real = (int (*)(int, const sigset_t*, sigset_t*))dlsym(RTLD_NEXT, "sigprocmask");
  return real(how, without(how, set, &room), before);
}
int pthread_sigmask(int how, const sigset_t* set, sigset_t* before) {
  static int (*real)(int, const sigset_t*, sigset_t*);
  sigset_t room;
  if (real == NULL) real = (int (*)(int, const sigset_t*, sigset_t*))dlsym(RTLD_NEXT, "pthread_sigmask");
  return real(how, without(how, set, &room), before);
}

#endif
