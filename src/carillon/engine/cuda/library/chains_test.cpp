// Chains by NVRTC: what it makes of them, where it is; what is kept of that, by a stand-in.
#include "carillon/engine/cuda/library/chains.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "carillon/engine/cuda/kernels/chain_source.h"
#include "carillon/engine/cuda/library/code_cache.h"
#include "carillon/engine/cuda/library/nvrtc.h"
#include "carillon/engine/cuda/library/plain.h"
#include "carillon/engine/cuda/testing/fake_nvrtc.h"
#include "carillon/engine/cuda/testing/random_chains.h"

namespace carillon::engine::cuda {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::RandomChain;

// A folder of its own, and what is in it.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (fs::temp_directory_path() / "carillon_code_XXXXXX").string();
    path = mkdtemp(name.data());
  }
  ~TempFolder() { fs::remove_all(path); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  std::vector<fs::path> files() const { return {fs::directory_iterator(path), fs::directory_iterator()}; }
  fs::path path;
};

std::string read_file(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
void write_file(const fs::path& file, const std::string& text) {
  std::ofstream(file, std::ios::binary | std::ios::trunc) << text;
}
std::vector<std::byte> code_of(const std::string& text) {
  const auto* const at = reinterpret_cast<const std::byte*>(text.data());
  return {at, at + text.size()};
}

TEST(CudaCodeCache, KeepsWhatItIsGiven) {
  const TempFolder folder;
  std::string problem;
  {
    CodeCache cache(folder.path / "code", "test 1; sm_90a", &problem);
    EXPECT_EQ(cache.find("a source"), std::nullopt);
    cache.keep("a source", code_of("its code\nof lines\n"));
    cache.keep("another", code_of(std::string("\0\n\0", 3)));
    EXPECT_EQ(cache.kept(), 2U);
  }
  const CodeCache cache(folder.path / "code", "test 1; sm_90a", &problem);
  EXPECT_EQ(cache.find("a source"), code_of("its code\nof lines\n"));
  EXPECT_EQ(cache.find("another"), code_of(std::string("\0\n\0", 3)));
  EXPECT_EQ(cache.find("a third"), std::nullopt);
  EXPECT_EQ(cache.found(), 2U);
  EXPECT_THAT(problem, IsEmpty());
}

TEST(CudaCodeCache, OfAnotherVersionIsNone) {
  const TempFolder folder;
  CodeCache(folder.path, "NVRTC 13.0; sm_90a").keep("source", code_of("old"));
  for (const char* const other : {"NVRTC 13.1; sm_90a", "NVRTC 13.0; sm_100", "", "NVRTC 13.0; sm_90a\n"})
    EXPECT_EQ(CodeCache(folder.path, other).find("source"), std::nullopt) << other;
  CodeCache now(folder.path, "NVRTC 13.1; sm_90a");
  now.keep("source", code_of("new"));
  EXPECT_EQ(now.find("source"), code_of("new"));
  EXPECT_EQ(folder.files().size(), 1U) << "the old version's is replaced";
}

TEST(CudaCodeCache, DamageIsFound) {
  const TempFolder folder;
  CodeCache cache(folder.path, "NVRTC 13.0; sm_90a");
  const std::string source = "a source of some length";
  const auto code = code_of("code of a chain, which is longer than a word or two");
  cache.keep(source, code);
  const fs::path file = folder.files().at(0);
  const std::string good = read_file(file);
  ASSERT_EQ(cache.find(source), code);
  for (std::size_t length = 0; length < good.size(); ++length) {
    write_file(file, good.substr(0, length));
    EXPECT_EQ(cache.find(source), std::nullopt) << "cut off at " << length;
  }
  for (std::size_t at = 0; at < good.size(); ++at)
    for (const int bit : {0, 3, 7}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << bit));
      write_file(file, bad);
      EXPECT_EQ(cache.find(source), std::nullopt) << "bit " << bit << " of byte " << at;
    }
  for (const std::string& bad : {good + "x", good + good, std::string("\n\n\n"), std::string(100, '\0'),
                                 std::string("x") + good, std::string("9999999999999999999 bytes\n\n\n")}) {
    write_file(file, bad);
    EXPECT_EQ(cache.find(source), std::nullopt);
  }
  // Another source's entry under this one's name.
  cache.keep("b source of some length", code_of("its code"));
  for (const fs::path& each : folder.files())
    if (each != file) fs::rename(each, file);
  EXPECT_EQ(cache.find(source), std::nullopt);
  // Larger than any is read, however little of it there is.
  fs::resize_file(file, CodeCache::largest + 1);
  EXPECT_EQ(cache.find(source), std::nullopt);
  fs::remove(file);
  fs::create_directory(file);
  EXPECT_EQ(cache.find(source), std::nullopt);
  fs::remove(file);
  cache.keep(source, code);
  EXPECT_EQ(cache.find(source), code);
}

TEST(CudaCodeCache, WhereNothingCanBeKeptItSaysSo) {
  const TempFolder folder;
  const auto problem_of = [](const fs::path& at) {
    std::string problem;
    CodeCache cache(at, "test", &problem);
    cache.keep("source", code_of("code"));
    EXPECT_EQ(cache.find("source"), std::nullopt);
    EXPECT_EQ(cache.kept(), 0U);
    return problem;
  };
  write_file(folder.path / "file", "");
  EXPECT_THAT(problem_of(folder.path / "file"), HasSubstr("is not a folder"));
  EXPECT_THAT(problem_of(folder.path / "no" / "such"), HasSubstr("is not a folder"));
  EXPECT_THAT(problem_of(folder.path / "no" / "such"), HasSubstr((folder.path / "no" / "such").string()));
  if (::geteuid() != 0) {
    fs::create_directory(folder.path / "closed");
    fs::permissions(folder.path / "closed", fs::perms::owner_read | fs::perms::owner_exec);
    EXPECT_THAT(problem_of(folder.path / "closed"), HasSubstr("cannot be written to: Permission denied"));
  }
  fs::create_directory(folder.path / "full");
  for (std::size_t i = 0; i < CodeCache::most; ++i) write_file(folder.path / "full" / std::to_string(i), "");
  EXPECT_THAT(problem_of(folder.path / "full"), HasSubstr("no more are kept"));
  CodeCache nowhere;
  nowhere.keep("source", code_of("code"));
  EXPECT_EQ(nowhere.find("source"), std::nullopt);
}

// Chains by a stand-in for NVRTC on the emulated device.
class CudaChains : public ::testing::Test {
 protected:
  CudaChains() { testing::nvrtc_says() = {}; }

  Result<std::unique_ptr<ChainLibrary>> chains(const std::string& architecture = "sm_90a") {
    const std::shared_ptr<const Driver> driver(std::shared_ptr<void>(), &host_.driver);
    auto compiler = std::make_shared<const Nvrtc>(testing::fake_nvrtc(), architecture);
    cache_ = std::make_shared<CodeCache>(folder_.path, compiler->version() + " " + architecture);
    return make_compiled_chains(driver, 0, compiler, cache_);
  }
  kernels::Chain chain(std::uint64_t seed) { return RandomChain(seed).launch.chain; }

  EmulatedHost host_;
  TempFolder folder_;
  std::shared_ptr<CodeCache> cache_;
};

TEST_F(CudaChains, AreCompiledOnceAndKept) {
  for (int start = 0; start < 2; ++start) {
    testing::nvrtc_says().compiled = 0;
    const auto made = chains();
    ASSERT_TRUE(made) << made.error().message;
    for (int again = 0; again < 3; ++again)
      for (std::uint64_t seed = 0; seed < 5; ++seed) EXPECT_TRUE((*made)->kernel(chain(seed)));
    EXPECT_EQ(testing::nvrtc_says().compiled, start == 0 ? 6 : 0) << "five, and the one that is tried";
  }
  EXPECT_EQ(host_.device.left_behind(), "");
  EXPECT_THAT(host_.device.violations(), IsEmpty());
}

TEST_F(CudaChains, OfAnotherVersionOrDeviceAreCompiledAnew) {
  ASSERT_TRUE(chains());
  testing::nvrtc_says().compiled = 0;
  ASSERT_TRUE(chains("sm_100"));
  EXPECT_EQ(testing::nvrtc_says().compiled, 1);
  testing::nvrtc_says().minor = 1;
  ASSERT_TRUE(chains("sm_100"));
  EXPECT_EQ(testing::nvrtc_says().compiled, 2);
  ASSERT_TRUE(chains("sm_100"));
  EXPECT_EQ(testing::nvrtc_says().compiled, 2);
}

TEST_F(CudaChains, WhereNvrtcFailsItsWordsAreTold) {
  testing::nvrtc_says().fails = true;
  const auto made = chains();
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error().message, HasSubstr("error: this stand-in was told to fail"));
  EXPECT_THAT(folder_.files(), IsEmpty());
  testing::nvrtc_says().fails = false;
  testing::nvrtc_says().size = std::size_t{1} << 60;
  EXPECT_FALSE(chains()) << "a size that no code has";
  EXPECT_EQ(testing::nvrtc_says().alive, 0);
}

// NVIDIA's own compiler, where tools/setup --with-cuda put it or a Python has it.
class Nvrtcs : public ::testing::Test {
 protected:
  static Result<std::shared_ptr<const Nvrtc>> of(const std::string& architecture) {
    auto sites = known_site_packages();
    sites.emplace_back(CARILLON_CUDA_PACKAGES);
    return Nvrtc::open({}, sites, architecture);
  }
};

// What the output depends on, as far as a compiler may see: not on what a choice between two that are the
// same goes by, nor on what is compared with itself or taken from itself.
std::vector<bool> used_values(const kernels::Chain& chain) {
  using Kind = kernels::Chain::Step::Kind;
  std::vector<bool> used(static_cast<std::size_t>(chain.operand_count + chain.step_count), false);
  used.back() = true;
  for (int i = chain.step_count; i-- > 0;) {
    if (!used[static_cast<std::size_t>(chain.operand_count + i)]) continue;
    const kernels::Chain::Step& step = chain.steps[i];
    const int all = operands_of(step);
    const bool of_itself =
        all == 2 && step.of[0] == step.of[1] && (step.kind == Kind::compare || step.op == kernels::Op::sub);
    const bool no_choice =
        all == 3 && step.of[1] == step.of[2] && (step.kind == Kind::select || step.op == kernels::Op::where);
    for (int k = no_choice ? 1 : 0; k < (of_itself ? 0 : all); ++k)
      used[static_cast<std::size_t>(step.of[k])] = true;
  }
  return used;
}

TEST_F(Nvrtcs, MakeCodeThatSpillsNothingOfChains) {
  std::uint64_t seed = 1000;
  int with_packs = 0;
  for (const char* const architecture : {"sm_75", "sm_80", "sm_90a", "sm_100"}) {
    SCOPED_TRACE(architecture);
    const auto compiler = of(architecture);
    if (!compiler) GTEST_SKIP() << compiler.error().message;
    for (int n = 0; n < 16; ++n, ++seed) {
      const RandomChain made(seed);
      const std::string source = kernels::chain_source(made.launch.chain);
      const auto code = (*compiler)->compile(source, {"--ptxas-options=-v"});
      ASSERT_TRUE(code) << "seed " << seed << ": " << code.error().message << source;
      EXPECT_THAT(code->log, HasSubstr(" 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"))
          << "seed " << seed << "\n"
          << source;
      const std::regex reads("ld\\.global[a-z.]*\\.(v4\\.[a-z]32|v2\\.[a-z]64)"),
          writes("st\\.global[a-z.]*\\.(v4\\.[a-z]32|v2\\.[a-z]64)");
      const std::size_t pack = size_of(made.result()) * static_cast<std::size_t>(made.launch.chain.pack);
      EXPECT_TRUE(pack < 16 || std::regex_search(code->ptx, writes)) << "seed " << seed << "\n" << source;
      bool reads_packs = false;
      const auto used = used_values(made.launch.chain);
      for (int i = 0; i < made.launch.chain.operand_count; ++i) {
        const kernels::Chain::Operand& operand = made.launch.chain.operands[i];
        reads_packs =
            reads_packs ||
            (used[static_cast<std::size_t>(i)] && operand.reading == kernels::Chain::Reading::dense &&
             size_of(operand.type) * static_cast<std::size_t>(made.launch.chain.pack) >= 16);
      }
      with_packs += reads_packs ? 1 : 0;
      EXPECT_TRUE(!reads_packs || std::regex_search(code->ptx, reads)) << "seed " << seed << "\n" << source;
    }
  }
  EXPECT_GT(with_packs, 15);
}

// Sums and products of f32 that stand side by side are not joined: each is rounded, as its kernel rounds it.
TEST_F(Nvrtcs, JoinNoSumsWithProducts) {
  const auto compiler = of("sm_90a");
  if (!compiler) GTEST_SKIP() << compiler.error().message;
  using kernels::Activation;
  using kernels::Op;
  kernels::Chain chain{};
  chain.operand_count = 3;
  chain.pack = 4;
  for (int i = 0; i < 3; ++i) chain.operands[i] = {kernels::Type::f32, kernels::Chain::Reading::dense, 0};
  for (const Op op : {Op::mul, Op::add, Op::mul, Op::sub, Op::mul, Op::add}) {
    kernels::Chain::Step& step = chain.steps[chain.step_count++];
    step.type = step.result = kernels::Type::f32;
    step.op = op;
    step.activation = op == Op::sub ? Activation::relu : Activation::none;
    step.of[0] = chain.operand_count + chain.step_count - 2;
    step.of[1] = chain.step_count % 3;
  }
  const auto code = (*compiler)->compile(kernels::chain_source(chain));
  ASSERT_TRUE(code) << code.error().message;
  EXPECT_THAT(code->ptx, HasSubstr("mul.rn.f32"));
  EXPECT_THAT(code->ptx, HasSubstr("add.rn.f32"));
  for (const char* const joined : {"fma", "mul.f32", "add.f32", "sub.f32"})
    EXPECT_THAT(code->ptx, Not(HasSubstr(joined)));
}

}  // namespace
}  // namespace carillon::engine::cuda
