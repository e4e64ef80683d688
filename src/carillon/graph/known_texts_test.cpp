#include "carillon/graph/known_texts.h"

#include <string>

#include <gtest/gtest.h>

namespace carillon::graph {
namespace {

TEST(KnownTexts, KeepsEachTextOnce) {
  KnownTexts texts(1 << 10);
  const auto cat = texts.add("cat"), nothing = texts.add(""), dog = texts.add(std::string_view("d\0g", 3));
  ASSERT_TRUE(cat && nothing && dog);
  EXPECT_EQ(*texts.add("cat"), *cat);
  EXPECT_EQ(texts.find(""), *nothing);
  EXPECT_EQ(texts.find(std::string_view("d\0g", 3)), *dog);
  EXPECT_EQ(texts.find("d"), unknown_text);
  EXPECT_NE(*nothing, unknown_text);  // an empty text is a text
  EXPECT_EQ(*texts.at(*cat), "cat");
  EXPECT_EQ(texts.at(*dog)->size(), 3U);
  EXPECT_EQ(*texts.at(unknown_text), "");
}

TEST(KnownTexts, RefusesHandlesOfNobody) {
  KnownTexts texts(1 << 10);
  ASSERT_TRUE(texts.add("a"));
  for (const TextHandle handle : {TextHandle{-1}, TextHandle{2}}) {
    const auto found = texts.at(handle);
    ASSERT_FALSE(found.has_value()) << handle;
    EXPECT_EQ(found.error().code, ErrorCode::internal);
  }
}

TEST(KnownTexts, HasABound) {
  KnownTexts texts(300);
  ASSERT_TRUE(texts.add("first"));
  const auto refused = texts.add(std::string(100, 'x'));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::resource_exhausted);
  EXPECT_TRUE(texts.add("first"));  // there already
  EXPECT_TRUE(texts.add("next"));
}

}  // namespace
}  // namespace carillon::graph
