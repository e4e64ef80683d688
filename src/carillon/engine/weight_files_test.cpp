#include "carillon/engine/weight_files.h"

#include <atomic>
#include <csignal>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "carillon/base/mix.h"
#include "carillon/base/testing/folder.h"

namespace carillon::engine {
namespace {

namespace fs = std::filesystem;
using Block = std::vector<std::byte>;

// Over two pieces, and a part of a third.
constexpr std::size_t usual = 2 * WeightFile::piece + 12345;

Block block(std::uint64_t seed, std::size_t size = usual) {
  Block out(size);
  for (std::size_t i = 0; i < size; ++i) out[i] = static_cast<std::byte>(mix(seed + i / 8) >> (i % 8 * 8));
  return out;
}

struct Store {
  explicit Store(Bytes limit = mib(64)) {
    auto made = WeightFiles::open({.directory = directory.path() / "a" / "weights",
                                   .limit = limit,
                                   .warn = [this](const std::string& text) { warned.push_back(text); }});
    EXPECT_TRUE(made.has_value()) << made.error().message;
    files = *made;
  }
  fs::path path() const { return files->directory(); }
  std::vector<fs::path> there() const {
    std::vector<fs::path> out;
    for (const auto& entry : fs::directory_iterator(path())) out.push_back(entry.path());
    return out;
  }
  std::shared_ptr<const WeightFile> keep(const Block& bytes) {
    auto kept = files->keep(bytes);
    EXPECT_TRUE(kept.has_value()) << kept.error().message;
    return *kept;
  }

  carillon::testing::Folder directory;
  std::vector<std::string> warned;
  std::shared_ptr<WeightFiles> files;
};

void expect_holds(const WeightFile& file, const Block& bytes) {
  ASSERT_EQ(file.size().count, bytes.size());
  Block got(bytes.size());
  const auto read = file.read(0, got);
  ASSERT_TRUE(read.has_value()) << read.error().message;
  EXPECT_EQ(got, bytes);
}

TEST(WeightFiles, WhatIsKeptIsReadAgain) {
  Store store;
  const Block bytes = block(1);
  const auto file = store.keep(bytes);
  expect_holds(*file, bytes);
  // Parts of pieces, across their ends and at the file's.
  for (const auto [from, size] : {std::pair<std::size_t, std::size_t>{0, 1},
                                  {WeightFile::piece - 3, 6},
                                  {5, 2 * WeightFile::piece},
                                  {usual - 1, 1},
                                  {usual, 0},
                                  {usual - 12345, 12345}}) {
    Block got(size);
    ASSERT_TRUE(file->read(from, got).has_value());
    EXPECT_TRUE(std::equal(got.begin(), got.end(), bytes.begin() + static_cast<std::ptrdiff_t>(from)))
        << from << " " << size;
  }
}

TEST(WeightFiles, OnlyTheOwnerReadsAndWrites) {
  Store store;
  (void)store.keep(block(1));
  for (const fs::path& path : {store.path(), store.path().parent_path()})
    EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_all) << path;
  EXPECT_EQ(fs::status(store.there().front()).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST(WeightFiles, TheSameBytesAreOneFile) {
  Store store;
  const auto first = store.keep(block(1)), second = store.keep(block(1)), other = store.keep(block(2));
  EXPECT_EQ(first, second);
  EXPECT_EQ(store.there().size(), 2U);
  // Another server, and the next one.
  auto more = WeightFiles::open({.directory = store.path(), .limit = mib(64)});
  ASSERT_TRUE(more.has_value());
  expect_holds(**(*more)->keep(block(1)), block(1));
  EXPECT_EQ(store.there().size(), 2U);
  EXPECT_NE(first->path(), other->path());
}

TEST(WeightFiles, FilesOfOtherSizesAreOthers) {
  Store store;
  const auto zeros = store.keep(Block(usual)), more = store.keep(Block(usual + 1));
  EXPECT_NE(zeros->path(), more->path());
}

TEST(WeightFiles, MayBeDeletedAtAnyTime) {
  Store store;
  const auto file = store.keep(block(1));
  fs::remove_all(store.path());
  expect_holds(*file, block(1));
  // The directory has gone, too: nothing is kept, and said so.
  EXPECT_EQ(store.files->try_keep(block(2)), nullptr);
  EXPECT_EQ(store.warned.size(), 1U);
}

TEST(WeightFiles, ADeletedFileIsWrittenAgain) {
  Store store;
  const auto file = store.keep(block(1));
  fs::remove(file->path());
  const auto again = store.keep(block(1));
  EXPECT_TRUE(fs::exists(again->path()));
  expect_holds(*again, block(1));
}

TEST(WeightFiles, WhatIsDamagedIsNotRead) {
  Store store;
  const auto file = store.keep(block(1));
  {
    std::fstream out(file->path(), std::ios::in | std::ios::out | std::ios::binary);
    out.seekp(WeightFile::piece + 7);
    out.put('x');
  }
  Block got(usual);
  const auto read = file->read(0, got);
  ASSERT_FALSE(read.has_value());
  EXPECT_EQ(read.error().code, ErrorCode::unavailable);
  EXPECT_NE(read.error().message.find("is damaged at byte 1048576"), std::string::npos)
      << read.error().message;
  EXPECT_TRUE(file->read(0, std::span(got).first(WeightFile::piece)).has_value())
      << "the first piece is whole";

  fs::resize_file(file->path(), usual - 1);
  const auto cut = file->read(usual - 10, std::span(got).first(10));
  ASSERT_FALSE(cut.has_value());
  EXPECT_NE(cut.error().message.find("is shorter than it was"), std::string::npos) << cut.error().message;
}

TEST(WeightFiles, TheNextServerReplacesWhatIsDamaged) {
  for (const bool cut : {false, true}) {
    Store store;
    const fs::path path = store.keep(block(1))->path();
    if (cut) {
      fs::resize_file(path, 100);
    } else {
      std::fstream out(path, std::ios::in | std::ios::out | std::ios::binary);
      out.seekp(usual - 1);
      out.put('x');
    }
    auto next = WeightFiles::open({.directory = store.path(), .limit = mib(64)});
    expect_holds(**(*next)->keep(block(1)), block(1));
  }
}

TEST(WeightFiles, WhatIsFoundDamagedIsWrittenAnew) {
  Store store;
  const auto file = store.keep(block(1));
  EXPECT_TRUE(file->whole().has_value());
  {
    std::fstream out(file->path(), std::ios::in | std::ios::out | std::ios::binary);
    out.put('x');
  }
  Block got(usual);
  EXPECT_FALSE(file->read(0, got).has_value());
  EXPECT_FALSE(file->whole().has_value());
  const auto again = store.keep(block(1));
  EXPECT_NE(again, file) << "the one that is open is damaged";
  expect_holds(*again, block(1));
  EXPECT_TRUE(again->whole().has_value());
}

// Each makes room only of what nobody has open.
TEST(WeightFiles, ServersLeaveEachOthersFiles) {
  Store store(Bytes{2 * usual});
  auto other = WeightFiles::open({.directory = store.path(), .limit = Bytes{2 * usual}});
  ASSERT_TRUE(other.has_value());
  const auto mine = store.keep(block(1));
  fs::last_write_time(mine->path(), fs::file_time_type::clock::now() - std::chrono::hours(1));
  (void)store.keep(block(2));
  const auto theirs = (*other)->keep(block(3));
  ASSERT_TRUE(theirs.has_value()) << theirs.error().message;
  EXPECT_TRUE(fs::exists(mine->path())) << "older, but in use";
  EXPECT_EQ(store.there().size(), 2U);
  EXPECT_FALSE((*other)->keep(block(4)).has_value());
}

TEST(WeightFiles, ALinkIsNotFollowed) {
  Store store;
  const fs::path path = store.keep(block(1))->path(), elsewhere = store.path() / "elsewhere";
  fs::rename(path, elsewhere);
  fs::create_symlink(elsewhere, path);
  auto next = WeightFiles::open({.directory = store.path(), .limit = mib(64)});
  expect_holds(**(*next)->keep(block(1)), block(1));
  EXPECT_FALSE(fs::is_symlink(path));
}

TEST(WeightFiles, TheLeastRecentlyUsedMakeRoom) {
  Store store(Bytes{3 * usual});
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    const fs::path path = store.keep(block(seed))->path();
    fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::minutes(10 - seed));
  }
  (void)store.keep(block(1));  // used again
  (void)store.keep(block(4));
  EXPECT_EQ(store.there().size(), 3U);
  const auto names = store.there();
  for (const std::uint64_t seed : {1U, 3U, 4U}) {
    const fs::path path = store.keep(block(seed))->path();
    EXPECT_NE(std::ranges::find(names, path), names.end()) << seed;
  }
}

TEST(WeightFiles, WhatIsInUseStays) {
  Store store(Bytes{2 * usual});
  const auto first = store.keep(block(1)), second = store.keep(block(2));
  const auto third = store.files->keep(block(3));
  ASSERT_FALSE(third.has_value());
  EXPECT_EQ(third.error().code, ErrorCode::resource_exhausted);
  EXPECT_NE(third.error().message.find("above the limit of 4.0 MiB"), std::string::npos)
      << third.error().message;
  EXPECT_TRUE(fs::exists(first->path()) && fs::exists(second->path()));
}

TEST(WeightFiles, SmallWeightsStayInMemory) {
  Store store;
  EXPECT_EQ(store.files->try_keep(block(1, WeightFiles::smallest.count - 1)), nullptr);
  EXPECT_NE(store.files->try_keep(block(1, WeightFiles::smallest.count)), nullptr);
  EXPECT_TRUE(store.warned.empty());
}

// A full disk is told once, and again after something could be kept.
TEST(WeightFiles, AFullDiskIsToldOnce) {
  Store store;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const auto limited = [&](rlim_t size) {
    const rlimit limit{.rlim_cur = size, .rlim_max = before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  };
  limited(WeightFile::piece);
  EXPECT_EQ(store.files->try_keep(block(1)), nullptr);
  EXPECT_EQ(store.files->try_keep(block(2)), nullptr);
  EXPECT_EQ(store.warned.size(), 1U);
  EXPECT_TRUE(store.there().empty()) << "no part of a file stays";
  limited(before.rlim_cur);
  EXPECT_NE(store.files->try_keep(block(3)), nullptr);
  limited(WeightFile::piece);
  EXPECT_EQ(store.files->try_keep(block(4)), nullptr);
  limited(before.rlim_cur);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(store.warned.size(), 2U);
  EXPECT_NE(store.warned[0].find("File too large"), std::string::npos) << store.warned[0];
}

graph::SharedTensor tensor(std::int64_t elements, float first) {
  graph::Tensor out({graph::DataType::f32, {elements}});
  for (std::int64_t i = 0; i < elements; ++i)
    out.as<float>()[static_cast<std::size_t>(i)] = first + static_cast<float>(i);
  return std::make_shared<const graph::Tensor>(std::move(out));
}

bool counts_from(const graph::Tensor& tensor, float first) {
  for (const float value : tensor.as<float>())
    if (value != first++) return false;
  return true;
}

// Pages of it that are in memory.
int resident(const graph::Tensor& tensor) {
  std::ifstream maps("/proc/self/smaps");
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.bytes().data());
  bool mine = false;
  for (std::string line; std::getline(maps, line);) {
    unsigned long long from = 0, to = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx ", &from, &to) == 2) mine = from == address;
    int kib = 0;
    if (mine && std::sscanf(line.c_str(), "Rss: %d kB", &kib) == 1) return kib / 4;
  }
  return -1;
}

TEST(WeightFiles, MovedConstantsTakeNoMemoryAndReadTheSame) {
  Store store;
  const auto large = tensor(300'001, 5), small = tensor(100, 7);
  {
    const auto moved = store.files->move({large, small, large});
    ASSERT_NE(moved, nullptr);
    EXPECT_TRUE(store.there().empty()) << "the file has no name";
    EXPECT_EQ(resident(*large), 0);
    EXPECT_TRUE(counts_from(*large, 5));
    EXPECT_GT(resident(*large), 0);
    moved->let_go();
    EXPECT_EQ(resident(*large), 0);
    EXPECT_TRUE(counts_from(*large, 5) && counts_from(*small, 7));
  }
  EXPECT_TRUE(counts_from(*large, 5)) << "a tensor outlives the object that moved it";
  EXPECT_TRUE(store.warned.empty());
}

TEST(WeightFiles, TheMemoryOfMovedConstantsIsUsedAgain) {
  Store store;
  for (int i = 0; i < 50; ++i) {
    const auto constant = tensor(100'000, 1);
    (void)store.files->move({constant});
  }
  // Written to from the first to the last byte.
  EXPECT_TRUE(counts_from(*tensor(100'000, 3), 3));
}

TEST(WeightFiles, MovedConstantsCountForTheLimit) {
  Store store(mib(2));
  const auto first = tensor(300'000, 1), second = tensor(300'000, 2);
  auto moved = store.files->move({first});
  ASSERT_NE(moved, nullptr);
  EXPECT_EQ(store.files->move({second}), nullptr);
  EXPECT_EQ(store.warned.size(), 1U);
  EXPECT_TRUE(counts_from(*second, 2));
  moved.reset();
  EXPECT_NE(store.files->move({second}), nullptr);
  EXPECT_EQ(store.files->move({}), nullptr);
  EXPECT_EQ(store.files->move({tensor(10, 0)}), nullptr);
  EXPECT_EQ(store.warned.size(), 1U);
}

TEST(WeightFiles, ConstantsMoveBesideReaders) {
  Store store;
  const auto constant = tensor(300'000, 1);
  std::atomic<bool> ended = false;
  std::atomic<int> wrong = 0;
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i)
    readers.emplace_back([&] {
      while (!ended) wrong += counts_from(*constant, 1) ? 0 : 1;
    });
  for (int i = 0; i < 20; ++i) {
    const auto moved = store.files->move({constant});
    ASSERT_NE(moved, nullptr);
    moved->let_go();
  }
  ended = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0);
}

TEST(WeightFiles, PartsOfFilesAreClearedAway) {
  Store store;
  const fs::path old = store.path() / "0-1.weights.1.0.partial",
                 fresh = store.path() / "0-2.weights.2.0.partial";
  for (const fs::path& path : {old, fresh}) std::ofstream(path) << "part";
  fs::last_write_time(old, fs::file_time_type::clock::now() - std::chrono::hours(2));
  ASSERT_TRUE(WeightFiles::open({.directory = store.path(), .limit = mib(1)}).has_value());
  EXPECT_FALSE(fs::exists(old));
  EXPECT_TRUE(fs::exists(fresh)) << "another server writes it";
}

TEST(WeightFiles, DirectoriesOfOthersAreRefused) {
  carillon::testing::Folder directory;
  const auto why = [&](const fs::path& path) {
    const auto made = WeightFiles::open({.directory = path, .limit = mib(1)});
    EXPECT_FALSE(made.has_value());
    return made ? std::string() : made.error().message;
  };
  fs::create_directory(directory.path() / "open");
  fs::permissions(directory.path() / "open", fs::perms::all);
  EXPECT_NE(why(directory.path() / "open").find("others than its owner may write there"), std::string::npos);
  fs::create_directories(directory.path() / "above" / "weights");
  fs::permissions(directory.path() / "above" / "weights", fs::perms::owner_all);
  fs::permissions(directory.path() / "above", fs::perms::all);
  EXPECT_NE(why(directory.path() / "above" / "weights").find("others than its owner may write there"),
            std::string::npos);
  std::ofstream(directory.path() / "file") << "x";
  EXPECT_NE(why(directory.path() / "file").find("is not a directory"), std::string::npos);
  EXPECT_NE(why(directory.path() / "file" / "below").find("file: is not a directory"), std::string::npos);
}

TEST(WeightFiles, FromManyThreads) {
  Store store(mib(8));
  std::atomic<int> wrong = 0, kept = 0;
  std::vector<std::thread> threads;
  for (std::uint64_t thread = 0; thread < 4; ++thread)
    threads.emplace_back([&, thread] {
      for (std::uint64_t i = 0; i < 12; ++i) {
        const Block bytes = block((thread + i) % 5);
        const auto file = store.files->keep(bytes);
        Block got(bytes.size());
        // All five are too many where four are in use.
        kept += file ? 1 : 0;
        if (file && (!(*file)->read(0, got) || got != bytes)) ++wrong;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GE(kept, 4);
}

TEST(WeightFiles, NotesAreReadAgainByTheirNames) {
  Store store;
  EXPECT_EQ(store.files->note("0a"), std::nullopt);
  store.files->put_note("0a", "a text");
  store.files->put_note("0b", "");
  EXPECT_EQ(store.files->note("0a"), "a text");
  EXPECT_EQ(store.files->note("0b"), "");
  store.files->put_note("0a", "another");
  EXPECT_EQ(store.files->note("0a"), "another");
  EXPECT_EQ(store.there().size(), 2U);
  // Another server.
  const auto more = WeightFiles::open({.directory = store.path(), .limit = mib(64)});
  ASSERT_TRUE(more.has_value());
  EXPECT_EQ((*more)->note("0a"), "another");
}

TEST(WeightFiles, DamagedNotesAreNone) {
  Store store;
  const auto put = [&](const std::string& bytes) {
    store.files->put_note("0a", "a text");
    std::ofstream(store.there().front(), std::ios::binary) << bytes;
  };
  store.files->put_note("0a", "a text");
  std::ifstream in(store.there().front(), std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), {});
  put(whole);
  EXPECT_EQ(store.files->note("0a"), "a text");
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string other = whole;
    other[i] ^= 1;
    put(other);
    EXPECT_EQ(store.files->note("0a"), std::nullopt) << i;
    put(whole.substr(0, i));
    EXPECT_EQ(store.files->note("0a"), std::nullopt) << i;
  }
  put(whole + "x");
  EXPECT_EQ(store.files->note("0a"), std::nullopt);
  // What is no file.
  fs::remove(store.there().front());
  fs::create_directory(store.path() / "0a.note");
  EXPECT_EQ(store.files->note("0a"), std::nullopt);
}

TEST(WeightFiles, NotesThatAreTooLongAreLeftOut) {
  Store store;
  const std::string longest(WeightFiles::longest_note, 'x');
  store.files->put_note("0a", longest);
  store.files->put_note("0a", longest + "y");
  EXPECT_EQ(store.files->note("0a"), longest);
}

// They are small, and make room for nothing.
TEST(WeightFiles, NotesStayWhereWeightsFindNoRoom) {
  Store store(mib(8));
  store.files->put_note("0a", "a text");
  const auto large = store.keep(block(1, mib(8).count - 100));
  EXPECT_FALSE(store.files->keep(block(2, 1000)));
  EXPECT_EQ(store.files->note("0a"), "a text");
}

TEST(WeightFiles, NotesOfLastWeekAreNone) {
  Store store;
  store.files->put_note("0a", "a text");
  store.files->put_note("0b", "another");
  const auto age = [&](const std::string& name, std::chrono::seconds by) {
    fs::last_write_time(store.path() / (name + ".note"), fs::file_time_type::clock::now() - by);
  };
  age("0a", WeightFiles::note_age + std::chrono::seconds{5});
  age("0b", WeightFiles::note_age - std::chrono::seconds{60});
  EXPECT_EQ(store.files->note("0a"), std::nullopt);
  EXPECT_EQ(store.files->note("0b"), "another");
  const auto again = WeightFiles::open({.directory = store.path(), .limit = mib(64)});
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(store.there().size(), 1U);
}

}  // namespace
}  // namespace carillon::engine
