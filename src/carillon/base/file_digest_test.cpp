#include "carillon/base/file_digest.h"

#include <string>

#include <gtest/gtest.h>

#include "carillon/base/testing/folder.h"

namespace carillon {
namespace {

TEST(FileDigest, TellsContentsApart) {
  const testing::Folder folder;
  const std::string large(700'000, 'x');
  std::string other = large;
  other.back() = 'y';
  const auto digest = digest_of(folder.write("a", large));
  ASSERT_TRUE(digest.has_value());
  EXPECT_EQ(digest, digest_of(folder.write("b", large)));
  EXPECT_NE(digest, digest_of(folder.write("c", other)));
  EXPECT_NE(digest, digest_of(folder.write("d", large + "x")));
  EXPECT_TRUE(digest_of(folder.write("e", "")).has_value());
  EXPECT_FALSE(digest_of(folder.path() / "none").has_value());
  EXPECT_FALSE(digest_of(folder.path()).has_value()) << "a folder is no file";
}

TEST(FileDigest, OfATextIsThatOfAFileThatHoldsIt) {
  const testing::Folder folder;
  EXPECT_EQ(digest_of_text("a text"), digest_of(folder.write("a", "a text")));
  EXPECT_NE(digest_of_text("a text"), digest_of_text("another"));
}

TEST(FileDigest, HasThirtyTwoDigits) {
  EXPECT_EQ(to_text(FileDigest{0x0123456789abcdef, 7}), "0123456789abcdef0000000000000007");
}

}  // namespace
}  // namespace carillon
