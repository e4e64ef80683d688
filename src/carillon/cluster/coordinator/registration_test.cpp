#include "carillon/cluster/coordinator/registration.h"

#include <variant>

#include <gtest/gtest.h>

namespace carillon::cluster {
namespace {

const Member self{.id = "a", .role = Role::worker, .address = "a:8100", .incarnation = 1};
constexpr TimePoint start{};

// With a lease, and its Txn out.
Registration with_put_out() {
  Registration registration("/carillon/box/members/a", self, {});
  EXPECT_TRUE(std::holds_alternative<etcd::LeaseGrant>(*registration.next(start)));
  registration.answered(etcd::LeaseAnswer{.header = {7, 1}, .id = 9, .ttl_s = 5}, start);
  EXPECT_EQ(std::get<etcd::Txn>(*registration.next(start)).mod_revision, 0);
  EXPECT_FALSE(registration.next(start));
  return registration;
}

TEST(Registration, EndsWhereItsEndIsSeenBeforeItsAnswer) {
  Registration registration = with_put_out();
  registration.seen(6, nullptr, start);
  registration.answered(etcd::TxnAnswer{.header = {7, 5}, .succeeded = true}, start);
  EXPECT_FALSE(registration.registered());
  EXPECT_TRUE(std::holds_alternative<etcd::Txn>(*registration.next(start)));
}

TEST(Registration, OutlivesTheEndOfAFormerKey) {
  Registration registration = with_put_out();
  registration.answered(etcd::TxnAnswer{.header = {7, 5}, .succeeded = true}, start);
  registration.seen(4, nullptr, start);
  EXPECT_TRUE(registration.registered());
  registration.seen(6, nullptr, start);
  EXPECT_FALSE(registration.registered());
}

TEST(Registration, KnowsTheRevisionOfItsKeyAfterEtcdWasSetBack) {
  Registration registration = with_put_out();
  registration.answered(etcd::TxnAnswer{.header = {7, 20}, .succeeded = true}, start);
  EXPECT_EQ(registration.held().mod_revision, 20);
  registration.set_back();
  const etcd::KeyValue ours{
      .key = "/carillon/box/members/a", .value = to_json(self), .mod_revision = 3, .lease = 9};
  registration.seen(9, &ours, start);
  EXPECT_TRUE(registration.registered());
  EXPECT_EQ(registration.held().mod_revision, 3);
}

TEST(Registration, WritesOverAKeyOfItsOwn) {
  Registration registration = with_put_out();
  const etcd::KeyValue ours{
      .key = "/carillon/box/members/a", .value = to_json(self), .mod_revision = 3, .lease = 8};
  registration.answered(etcd::TxnAnswer{.header = {7, 5}, .succeeded = false, .kvs = {ours}}, start);
  const auto again = registration.next(start);
  EXPECT_EQ(std::get<etcd::Txn>(*again).mod_revision, 3);
  EXPECT_EQ(std::get<etcd::Txn>(*again).lease, 9);
  EXPECT_EQ(std::get<etcd::Txn>(*again).value, to_json(self));
}

TEST(Registration, SaysThatAKeyWithoutLeaseNeedsAHand) {
  Registration registration = with_put_out();
  Member other = self;
  other.incarnation = 2;
  for (const std::int64_t lease : {0, 4}) {
    const etcd::KeyValue theirs{.key = "", .value = to_json(other), .mod_revision = 3, .lease = lease};
    registration.answered(etcd::TxnAnswer{.header = {7, 5}, .succeeded = false, .kvs = {theirs}}, start);
    const auto news = registration.take_news();
    ASSERT_EQ(news.size(), 1U);
    EXPECT_EQ(std::get<IdTaken>(news[0]).why.contains("by hand"), lease == 0);
  }
  // Not before a while, and not over it.
  EXPECT_FALSE(registration.next(start));
  EXPECT_EQ(std::get<etcd::Txn>(*registration.next(start + 500ms)).mod_revision, 0);
}

TEST(Registration, HasLeftOnceEtcdSaysSo) {
  for (const auto kind : {etcd::Failure::Kind::unreachable, etcd::Failure::Kind::not_found}) {
    Registration registration = with_put_out();
    registration.answered(etcd::TxnAnswer{.header = {7, 5}, .succeeded = true}, start);
    EXPECT_TRUE(std::holds_alternative<Registered>(registration.take_news().at(0)));
    registration.leave();
    EXPECT_LE(registration.due(), start);
    EXPECT_EQ(std::get<etcd::LeaseRevoke>(*registration.next(start)).id, 9);
    registration.failed({kind, "why"}, start);
    if (kind == etcd::Failure::Kind::unreachable) {  // the key may still be there: asked again
      EXPECT_FALSE(registration.next(start));
      EXPECT_TRUE(registration.take_news().empty());
      EXPECT_EQ(registration.due(), start + 500ms);
      EXPECT_EQ(std::get<etcd::LeaseRevoke>(*registration.next(start + 500ms)).id, 9);
      registration.answered(etcd::LeaseAnswer{.header = {7, 6}}, start + 500ms);
    }
    EXPECT_FALSE(registration.next(start + 500ms));
    const auto news = registration.take_news();
    ASSERT_EQ(news.size(), 1U);
    EXPECT_EQ(std::get<Unregistered>(news[0]).why, "it left");
    EXPECT_EQ(registration.due(), TimePoint::max());
  }
}

}  // namespace
}  // namespace carillon::cluster
