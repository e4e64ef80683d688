#include "carillon/share/client/wire.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <vector>

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

// What a job makes of a broker's packets and of the descriptors that come along.
namespace carillon::share::client {
namespace {

std::size_t open_descriptors() {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

struct Wire : ::testing::Test {
  int ends[2]{-1, -1};
  Packet packet;
  Descriptors descriptors;
  std::size_t before = 0;

  void SetUp() override {
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    before = open_descriptors();
  }
  void TearDown() override {
    descriptors.close_all();
    EXPECT_EQ(open_descriptors(), before);
    for (const int end : ends) close(end);
  }
  void send_with(const void* bytes, std::size_t size, std::size_t many) const {
    std::vector<int> numbers(many, ends[0]);
    iovec part{const_cast<void*>(bytes), size};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    std::vector<char> control(CMSG_SPACE(many * sizeof(int)));
    if (many > 0) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* const header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(many * sizeof(int));
      std::memcpy(CMSG_DATA(header), numbers.data(), many * sizeof(int));
    }
    ASSERT_EQ(sendmsg(ends[0], &message, 0), static_cast<ssize_t>(size));
  }
  Came pieces(std::uint32_t says, std::size_t many, std::size_t size = sizeof(Pieces)) {
    Pieces sent;
    sent.header.kind = Kind::pieces;
    sent.header.bytes = static_cast<std::uint32_t>(size);
    sent.count = says;
    send_with(&sent, size, many);
    const Came came = receive_packet(ends[1], packet, descriptors, 1000);
    descriptors.close_all();
    return came;
  }
};

TEST_F(Wire, PiecesComeWithAsManyDescriptorsAsTheySay) {
  EXPECT_EQ(pieces(1, 1), Came::packet);
  EXPECT_EQ(pieces(most_pieces, most_pieces), Came::packet);
  EXPECT_EQ(pieces(2, 1), Came::closed);
  EXPECT_EQ(pieces(1, 2), Came::closed);
  EXPECT_EQ(pieces(1, 0), Came::closed);
  EXPECT_EQ(pieces(most_pieces + 1, most_pieces + 1),
            Came::closed);                                // the kernel drops what there is no place for
  EXPECT_EQ(pieces(1, 1, sizeof(Header)), Came::closed);  // too short for its kind
}

TEST_F(Wire, OfSeveralDescriptorsOneIsTaken) {
  Header header;
  header.kind = Kind::bye;
  header.bytes = sizeof header;
  send_with(&header, sizeof header, 3);
  ASSERT_EQ(receive_packet(ends[1], packet, descriptors, 1000), Came::packet);
  const int one = descriptors.take_one();
  EXPECT_EQ(open_descriptors(), before + 1);
  close(one);
  EXPECT_EQ(descriptors.take_one(), -1);
}

}  // namespace
}  // namespace carillon::share::client
