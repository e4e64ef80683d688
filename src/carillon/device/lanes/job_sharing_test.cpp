#include "carillon/device/lanes/job_sharing.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "carillon/base/random.h"
#include "carillon/base/testing/seeds.h"
#include "carillon/device/lanes/testing/job_world.h"

namespace carillon::device {
namespace {

using testing::run_world;
using testing::WorldFigures;
using testing::WorldJob;
using testing::WorldOptions;

}  // namespace
}  // namespace carillon::device
