#pragma once

#include <string_view>

#include "carillon/base/result.h"

namespace carillon::schedule {

struct CarillonOptions {
  // With 0 a batch starts as soon as a device is free.
  double defer = 1;
  // A batch is deferred only while a request in a larger one would take less device time by more than this
  // share: where batching gains nothing, waiting only makes answers later.
  double least_gain = 0.005;
  // Nothing is deferred while a smaller share of requests than this would find all devices busy if each ran
  // by itself: nobody needs the device time that larger batches would save.
  double leisure = 0.5;
  // What the time of an idle device is worth beside that of a busy one while devices are short. 0: nothing,
  // so that batches wait as long as their deadlines allow.
  double price = 1;
  // With 0 batches are as large as their deadlines allow, whatever waits behind them.
  double limit = 1;
  // Where the rates ask for more than one or two devices have, batches are shorter for the sake of models in
  // a hurry. With 0 they are not.
  double curb = 0;
  // While requests are lost, other values of `keep_off`, `limit` and `curb` are tried, and kept if more is
  // answered (parts::Experiments). A `keep_off` or `limit` of 0 stays. With 0, `fair` or `tenants` nothing is
  // tried.
  double experiments = 1;
  // Share of the planned batch size for which requests are passed over, and refused. 0: they are passed over
  // for the largest batch, and wait on.
  double hold = 0.87;
  // With 0 long runs may have all devices.
  double keep_off = 1;
  // With 0 only the mean rates tell that devices are short, not what waits.
  double backlog = 1;
  // While devices are short, a batch is put back by so many times the device time that it takes beyond what
  // as many requests take on average. 0: the most urgent goes first.
  double value = 1;
  // Likewise, by so many times the device time that batches of the planned size would save.
  double waste = 2;
  // With 0 batches of models whose time varies with the input are as large as their seeds make worthwhile,
  // whatever large ones take.
  double worth = 1;
  // With 0 nothing is told apart by the application that requests name.
  double kinds = 1;
  // With 0 batches are in time by the longest of the last ten runs and by margins for all else, as under
  // other policies, not by the chances of what runs take.
  double chance = 1;
  // While requests ask for more than there is, those of a model that asks for no more device time than this
  // share of its max-min share go first. 0: models compete by answers.
  double fair = 0;
  // The same for tenants that requests tell apart: each key is one, or else each application. A server's
  // policy is then told of no lengths.
  double tenants = 0;
};

// "value=0.5,keep_off=0": the defaults but for these. The error lists the names.
Result<CarillonOptions> carillon_options(std::string_view text);

}  // namespace carillon::schedule
