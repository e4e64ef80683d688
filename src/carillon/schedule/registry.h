#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/schedule/scheduler.h"
#include "carillon/schedule/subclusters.h"

namespace carillon::schedule {

// A new scheduler by its name on the command line: "clockwork", "symphony", "timeout:0.3"; the error lists
// the names there are, or says what the value behind the colon must be. Where the environment says when a
// device hangs, it is Watched.
Result<std::unique_ptr<Scheduler>> make_scheduler(std::string_view name, const Environment& environment = {});
// The same for groups of devices that divide the models: each group has a scheduler of that name.
Result<std::unique_ptr<Subclusters>> make_subclusters(std::string_view name, const Environment& environment,
                                                      GroupsOfModels division);
// Every policy by a name that make_scheduler takes, with a value where one is needed.
std::vector<std::string> scheduler_names();
// Whether it preempts where the environment says so. The others decide as if it did not.
bool takes_preemption(std::string_view name);
// Whether Admission stands around it where the environment says so. Around the others it never does.
bool takes_admission(std::string_view name);
std::string scheduler_list();  // the same, with commas between them, for people

}  // namespace carillon::schedule
