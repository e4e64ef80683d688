// Chains against the kernels of their single operations: by the interpreter, and as the host's compiler makes
// them of their sources.
#include "carillon/engine/cuda/kernels/chain.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <gtest/gtest.h>

#include "carillon/engine/cuda/kernels/chain_source.h"
#include "carillon/engine/cuda/testing/random_chains.h"

namespace carillon::engine::cuda::kernels {
namespace {

namespace fs = std::filesystem;
using testing::differs;
using testing::RandomChain;

void expect_same(RandomChain& made, const std::string& what) {
  const std::vector<std::byte> want = made.one_by_one(), got = made.output();
  const std::ptrdiff_t wrong = differs(made.result(), want, got);
  EXPECT_EQ(wrong, -1) << what << ", element of " << made.launch.params.count << "\n"
                       << chain_source(made.launch.chain);
}

TEST(CudaChain, TheInterpreterGivesWhatSingleKernelsGive) {
  for (std::uint64_t seed = 0; seed < 2000 && !::testing::Test::HasFailure(); ++seed) {
    RandomChain made(seed);
    const auto launched = launch(made.launch, 132);
    ASSERT_TRUE(launched) << "seed " << seed << ": " << launched.error().message;
    made.clear();
    launched->kernel->run(&made.launch);
    expect_same(made, "seed " + std::to_string(seed));
  }
}

TEST(CudaChain, ItMayStopBeforeAnyTile) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    RandomChain made(seed);
    const auto launched = launch(made.launch, 132);
    ASSERT_TRUE(launched);
    made.clear();
    const auto before = made.output();
    launched->kernel->run_some(&made.launch, 0);
    EXPECT_EQ(made.output(), before);
    launched->kernel->run_some(&made.launch, 1);
    launched->kernel->run(&made.launch);
    expect_same(made, "seed " + std::to_string(seed));
  }
}

// The compiler that made this program, else any.
std::string compiler() {
  for (const char* const each : {CARILLON_CXX, "c++", "g++", "clang++"})
    if (std::system((std::string(each) + " --version >/dev/null 2>&1").c_str()) == 0) return each;
  return {};
}

TEST(CudaChain, TheSourceGivesWhatSingleKernelsGive) {
  const std::string cxx = compiler();
  if (cxx.empty()) GTEST_SKIP() << "there is no C++ compiler here: neither " CARILLON_CXX " nor c++";
  std::string name = (fs::temp_directory_path() / "carillon_chain_XXXXXX").string();
  ASSERT_NE(mkdtemp(name.data()), nullptr);
  const fs::path folder = name;
  const std::shared_ptr<void> remove(nullptr, [&](void*) { fs::remove_all(folder); });
  for (const SourceHeader& each : chain_headers()) {
    fs::create_directories((folder / each.name).parent_path());
    std::ofstream(folder / each.name) << each.text;
  }
  constexpr std::uint64_t all = 320, in_one = 80;
  for (std::uint64_t first = 0; first < all; first += in_one) {
    const std::string source = folder / ("chains" + std::to_string(first) + ".cpp"), library = source + ".so";
    {
      std::ofstream out(source);
      for (std::uint64_t seed = first; seed < first + in_one; ++seed)
        out << chain_source(RandomChain(seed).launch.chain, "chain_" + std::to_string(seed));
    }
    const std::string optimised = first == 0 ? " -O1" : " -O0";  // which takes a compiler half as long
    const std::string command = cxx + " -std=c++20" + optimised + " -ffp-contract=off -fPIC -shared -I" +
                                folder.string() + " -o " + library + " " + source;
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
    void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(handle, nullptr) << dlerror();
    for (std::uint64_t seed = first; seed < first + in_one; ++seed) {
      RandomChain made(seed);
      void (*run)(const ChainParams*) = nullptr;
      void* const found = dlsym(handle, ("chain_" + std::to_string(seed)).c_str());
      ASSERT_NE(found, nullptr);
      std::memcpy(&run, &found, sizeof run);
      made.clear();
      run(&made.launch.params);
      expect_same(made, "seed " + std::to_string(seed));
    }
    dlclose(handle);
  }
}

TEST(CudaChain, TheSourceIsTheSameForAllSizes) {
  RandomChain a(3), b(3);
  EXPECT_EQ(chain_source(a.launch.chain), chain_source(b.launch.chain));
  EXPECT_NE(chain_source(a.launch.chain), chain_source(RandomChain(4).launch.chain));
  // Twice as many rows.
  ChainLaunch made{};
  made.chain.operand_count = 2;
  made.chain.step_count = 1;
  made.chain.operands[0].type = made.chain.operands[1].type = Type::f16;
  made.chain.steps[0] = {.kind = Chain::Step::Kind::arithmetic,
                         .type = Type::f16,
                         .result = Type::f16,
                         .op = Op::add,
                         .of = {0, 1, 0}};
  std::string sources[2];
  for (std::uint32_t rows : {1U, 2U}) {
    ChainOperand& whole = made.params.operands[0];
    ChainOperand& bias = made.params.operands[1];
    whole.rank = bias.rank = 2;
    whole.extents[0] = bias.extents[0] = 7 * rows;
    whole.extents[1] = bias.extents[1] = 16;
    whole.strides[0] = 16;
    whole.strides[1] = bias.strides[1] = 1;
    made.params.count = std::int64_t{7} * 16 * rows;
    choose_readings(made.chain, made.params);
    EXPECT_EQ(made.chain.operands[0].reading, Chain::Reading::dense);
    EXPECT_EQ(made.chain.operands[1].reading, Chain::Reading::run);
    EXPECT_EQ(made.chain.pack, 8);
    EXPECT_TRUE(launch(made, 132));
    sources[rows - 1] = chain_source(made.chain);
  }
  EXPECT_EQ(sources[0], sources[1]);
}

TEST(CudaChain, WhatIsNoneIsRefused) {
  const RandomChain good(7);
  const auto refused = [&](const auto& change) {
    ChainLaunch made = good.launch;
    change(made);
    const auto launched = launch(made, 132);
    EXPECT_FALSE(launched);
    return launched ? std::string() : launched.error().message;
  };
  EXPECT_TRUE(launch(good.launch, 132));
  EXPECT_NE(refused([](ChainLaunch& c) { c.chain.step_count = most_chain_steps + 1; }).find("steps"),
            std::string::npos);
  EXPECT_NE(refused([](ChainLaunch& c) { c.chain.operand_count = 0; }).find("operands"), std::string::npos);
  EXPECT_NE(refused([](ChainLaunch& c) { ++c.params.count; }).find("elements"), std::string::npos);
  EXPECT_NE(
      refused([](ChainLaunch& c) { c.chain.steps[0].of[0] = c.chain.operand_count; }).find("not there yet"),
      std::string::npos);
  EXPECT_NE(refused([](ChainLaunch& c) {
              c.chain.steps[0].kind = Chain::Step::Kind::compare;
              c.chain.steps[0].result = Type::f32;
            }).find("types"),
            std::string::npos);
}

}  // namespace
}  // namespace carillon::engine::cuda::kernels
