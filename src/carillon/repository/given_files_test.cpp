#include "carillon/repository/given_files.h"

#include <fstream>
#include <iterator>

#include <gtest/gtest.h>
#include <sys/stat.h>

namespace carillon::repository {
namespace {

namespace fs = std::filesystem;

std::string content_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(GivenFiles, AreInAPrivateFolderThatGoesWithThem) {
  fs::path where;
  {
    auto folder = GivenFolder::make("m", {{"1/model.onnx", std::string("\0a", 2)}, {"labels/a.txt", ""}});
    ASSERT_TRUE(folder.has_value()) << folder.error().message;
    where = folder->repository();
    EXPECT_EQ(content_of(where / "m" / "1" / "model.onnx"), std::string("\0a", 2));
    EXPECT_TRUE(fs::is_regular_file(where / "m" / "labels" / "a.txt"));
    EXPECT_EQ(fs::status(where).permissions(), fs::perms::owner_all);
    const GivenFolder moved = *std::move(folder);
    EXPECT_EQ(moved.repository(), where);
  }
  EXPECT_FALSE(fs::exists(where));
}

TEST(GivenFiles, PathsDoNotLeaveTheModelsFolder) {
  for (const char* path : {"1/model.onnx", "a", "...", "1/..model", "a/b/c/d/e/f/g/h"})
    EXPECT_TRUE(check_given_path(path).has_value()) << path;
  const std::string wide(256, 'a');
  const struct {
    std::string path, why;
  } rows[] = {{"", "it has the part ''"},
              {"/etc/passwd", "it begins with '/'"},
              {"../m/1/model.onnx", "it has the part '..'"},
              {"1/../../x", "it has the part '..'"},
              {"1/..", "it has the part '..'"},
              {"./1/model.onnx", "it has the part '.'"},
              {"1//model.onnx", "it has the part ''"},
              {"1/", "it has the part ''"},
              {"1/" + wide, "a part of it is longer"},
              {"a/b/c/d/e/f/g/h/i", "more than 8 deep"},
              {std::string("1/model\0.onnx", 13), "not UTF-8 text"},
              {"1/\xff", "not UTF-8 text"}};
  for (const auto& row : rows) {
    const auto checked = check_given_path(row.path);
    ASSERT_FALSE(checked.has_value()) << row.path;
    EXPECT_EQ(checked.error().code, ErrorCode::invalid_argument);
    EXPECT_NE(checked.error().message.find(row.why), std::string::npos) << checked.error().message;
    EXPECT_FALSE(GivenFolder::make("m", {{row.path, "x"}}).has_value());
  }
}

TEST(GivenFiles, AreNamedAsTheirSenderNamesThem) {
  const auto made = GivenFolder::make("m", {{"1/model.onnx", "x"}});
  ASSERT_TRUE(made) << made.error().message;
  const std::string folder = (made->repository() / "m").string();
  EXPECT_EQ(made->in_senders_words(folder + " has no folder: put it there as " + folder + "/1/model.onnx"),
            "the order has no folder: put it there as file:1/model.onnx");
}

TEST(GivenFiles, WhatCannotBeIsRefused) {
  GivenFiles many;
  for (std::size_t i = 0; i <= most_given_files; ++i) many["1/" + std::to_string(i)];
  const struct {
    std::string model;
    GivenFiles files;
    const char* why;
  } rows[] = {
      {"../m", {{"1/model.onnx", ""}}, "are hidden"},
      {"a/b", {{"1/model.onnx", ""}}, "cannot be a model's name"},
      {".m", {{"1/model.onnx", ""}}, "are hidden"},
      {"", {{"1/model.onnx", ""}}, "cannot be a model's name"},
      {"m", {{"1", "a"}, {"1/model.onnx", ""}}, "file '1/model.onnx': another of the files has its name"},
      {"m", many, "1001 files; at most 1000"},
  };
  for (const auto& row : rows) {
    const auto made = GivenFolder::make(row.model, row.files);
    ASSERT_FALSE(made.has_value()) << row.model;
    EXPECT_EQ(made.error().code, ErrorCode::invalid_argument);
    EXPECT_NE(made.error().message.find(row.why), std::string::npos) << made.error().message;
  }
}

}  // namespace
}  // namespace carillon::repository
