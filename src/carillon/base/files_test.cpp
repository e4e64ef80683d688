#include "carillon/base/files.h"

#include <string>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "carillon/base/replace_file.h"
#include "carillon/base/testing/folder.h"

namespace carillon {
namespace {

TEST(Files, ReadWhatWasWritten) {
  const testing::Folder folder;
  for (const std::string& text : {std::string(), std::string("a\n\0b", 4), std::string(200'000, 'x')}) {
    const auto file = folder.path() / "file";
    ASSERT_TRUE(write_file(file, text));
    EXPECT_EQ(read_file("the text", file).value(), text);
    auto in = open_to_read("the text", file);
    ASSERT_TRUE(in);
    EXPECT_EQ(in->get(), text.empty() ? EOF : text[0]) << "it stands at the beginning";
  }
}

TEST(Files, SayWhyNot) {
  const testing::Folder folder;
  const std::string none = (folder.path() / "none").string(), at = folder.path().string();
  const auto gone = open_to_read("the log", none);
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error(),
            (Error{ErrorCode::not_found, "cannot read the log '" + none + "': No such file or directory"}));
  EXPECT_EQ(read_file("the log", none).error(), gone.error());
  EXPECT_EQ(read_file("the log", at).error(),
            (Error{ErrorCode::invalid_argument, "cannot read the log '" + at + "': Is a directory"}));
  EXPECT_EQ(open_to_read("the log", at).error().message, "cannot read the log '" + at + "': Is a directory");
  EXPECT_EQ(write_file(at, "x").error().message, "cannot write '" + at + "': Is a directory");
  EXPECT_EQ(write_file(none + "/x", "x").error().message,
            "cannot write '" + none + "/x': No such file or directory");
  EXPECT_EQ(write_file("/dev/full", "x").error().message,
            "cannot write '/dev/full': No space left on device");
  EXPECT_EQ(replace_file(none + "/x", {"x"}), std::errc::no_such_file_or_directory);
}

TEST(Files, SayThatSomebodyMayNot) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may read everything";
  const testing::Folder folder;
  const auto file = folder.write("secret", "x");
  ASSERT_EQ(::chmod(file.c_str(), 0), 0);
  EXPECT_TRUE(read_file("the secret", file).error().message.ends_with("': Permission denied"));
  EXPECT_TRUE(write_file(file, "x").error().message.ends_with("': Permission denied"));
}

}  // namespace
}  // namespace carillon
