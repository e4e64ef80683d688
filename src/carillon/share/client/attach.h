#pragma once

#include <cstddef>
#include <cstdint>

// The job and its broker: hello, packets, more memory, and what becomes of a job whose broker is gone.
#pragma GCC visibility push(hidden)
namespace carillon::share::client {

// Whether it goes on with this broker.
enum class After : std::uint8_t { same, lost, alone, ended };

// --- under me.lock

void hang_up();
void go_alone(const char* reason);
// The script closed what is not its own: there is no way to the broker any more.
bool lost_descriptors();
// Reads what has come.
After read_all();
bool say_stopped();
// Connects, says hello and maps the page: after this the job is held. An Answer.
int say_hello(bool again);
// More of the lane, where it does not suffice for `bytes` at once. Others wait for the lock meanwhile: the
// job is held until the answer.
bool ask_for(std::size_t bytes);

// --- without

// Waits for a broker at the same place until `until`. An Answer.
int attach_again(std::uint64_t until);

}  // namespace carillon::share::client
#pragma GCC visibility pop
