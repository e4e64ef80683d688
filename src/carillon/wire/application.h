#pragma once

#include <string>
#include <string_view>

namespace carillon::wire {

// A Dispatcher is told an application's name behind the name of the key that the call came with, if it came
// with one. A policy that tells tenants apart goes by the key then: clients choose the names of their
// applications, but not those of their keys.
inline constexpr char behind_key = '\0';

inline std::string application_of(std::string_view key, std::string_view application) {
  return key.empty() ? std::string(application) : std::string(key).append(1, behind_key).append(application);
}
// Who asks: the key, else the application.
inline std::string_view tenant_of(std::string_view told) {
  return told.substr(0, told.find(behind_key));
}
// The application alone.
inline std::string_view without_key(std::string_view told) {
  const auto end = told.find(behind_key);
  return end == std::string_view::npos ? told : told.substr(end + 1);
}

}  // namespace carillon::wire
