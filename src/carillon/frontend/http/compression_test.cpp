#include "carillon/frontend/http/compression.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "carillon/base/random.h"

namespace carillon::frontend {
namespace {

std::string packed(Coding coding, const std::string& text) {
  const std::span<const std::byte> pieces[] = {std::as_bytes(std::span(text).first(text.size() / 2)),
                                               std::as_bytes(std::span(text).subspan(text.size() / 2))};
  return pack(coding, pieces);
}

TEST(Compression, RoundTrip) {
  Random random(5);
  for (const std::size_t size : {0U, 1U, 100U, 16384U, 1000000U}) {
    std::string text(size, 'a');
    for (std::size_t i = 0; i < size; i += 3) text[i] = static_cast<char>(random.below(256));
    for (const auto coding : {Coding::gzip, Coding::deflate}) {
      const auto back = unpack(packed(coding, text), size);
      ASSERT_TRUE(back) << back.error().message;
      EXPECT_EQ(back->text(), text);
    }
  }
}

TEST(Compression, BoundsWhatItUnpacks) {
  const std::string bomb = packed(Coding::gzip, std::string(50 << 20, '\0'));
  const auto refused = unpack(bomb, 1 << 20);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().fault, UnpackFault::too_large);
  EXPECT_THAT(refused.error().message, ::testing::HasSubstr("more than 1048576 bytes"));
  EXPECT_TRUE(unpack(packed(Coding::gzip, std::string(1 << 20, '\0')), 1 << 20));
}

TEST(Compression, BoundsTheRatioOfWhatIsLarge) {
  const std::string bomb = packed(Coding::gzip, std::string(any_ratio + 1, '\0'));
  ASSERT_LT(bomb.size(), any_ratio / largest_ratio);
  const auto refused = unpack(bomb, std::size_t{1} << 30);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().fault, UnpackFault::too_large);
  EXPECT_THAT(refused.error().message, ::testing::HasSubstr("100 times its packed size"));
  EXPECT_TRUE(unpack(packed(Coding::gzip, std::string(any_ratio, '\0')), std::size_t{1} << 30));
}

TEST(Compression, UnpacksNoMoreThanThereIsRoomFor) {
  const std::string body = packed(Coding::gzip, std::string(1 << 20, '\0'));
  const auto budget = std::make_shared<ByteBudget>(2 << 20, 1 << 20);
  Reservation room(budget);
  ASSERT_TRUE(room.grow(body.size()));
  {
    const auto back = unpack(body, 8 << 20, &room);
    ASSERT_TRUE(back) << back.error().message;
    EXPECT_EQ(room.bytes(), body.size() + (1 << 20));
  }
  room.shrink_to(body.size());
  Reservation other(budget);
  ASSERT_TRUE(other.grow(1 << 20));
  const auto refused = unpack(body, 8 << 20, &room);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().fault, UnpackFault::no_room);
  EXPECT_EQ(room.bytes(), body.size());
}

TEST(Compression, RefusesDamage) {
  const std::string good = packed(Coding::gzip, "some text that is long enough to be cut somewhere");
  EXPECT_FALSE(unpack("", 100));
  EXPECT_FALSE(unpack("plain", 100));
  EXPECT_FALSE(unpack(good + "x", 100));
  for (std::size_t n = 0; n < good.size(); ++n) EXPECT_FALSE(unpack(good.substr(0, n), 100)) << n;
  Random random(9);
  for (int round = 0; round < 5000; ++round) {
    std::string bad = good;
    bad[random.below(bad.size())] = static_cast<char>(random.below(256));
    const auto result = unpack(bad, 100);
    if (!result) {
      EXPECT_FALSE(result.error().message.empty());
    }
  }
}

TEST(Compression, AcceptEncoding) {
  const struct {
    const char* header;
    std::optional<Coding> wanted;
  } rows[] = {
      {"", std::nullopt},
      {"identity", std::nullopt},
      {"*", std::nullopt},
      {"gzip", Coding::gzip},
      {"deflate", Coding::deflate},
      {"deflate, GZIP;q=0.5", Coding::gzip},
      {"gzip;q=0, deflate", Coding::deflate},
      {"gzip; q=x", std::nullopt},
      {",,br,", std::nullopt},
  };
  for (const auto& [header, wanted] : rows) EXPECT_EQ(accepted_coding(header), wanted) << header;
}

}  // namespace
}  // namespace carillon::frontend
