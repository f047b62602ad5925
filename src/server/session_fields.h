// session_params and session_id, which every dialect's requests may bring. Internal to the room.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "engine/requests/request.h"
#include "server/json_fields.h"

namespace espalier::server {

Status read_session_params(const Json& value, std::string_view where,
                           std::optional<SessionParams>& out);
std::string session_params_schema();

template <typename T, typename C>
Field<T> session_field(std::optional<SessionParams> C::*member) {
  return custom<T>("session_params", session_params_schema(),
                   "how the request continues others of a session that /open_session opened",
                   [member](const Json& value, std::string_view where, T& out) {
                     return read_session_params(value, where, out.*member);
                   });
}
template <typename T, typename C>
Field<T> session_id_field(std::string C::*member) {
  return field<T>("session_id", "the session, where session_params say nothing more", member);
}

// What the two say together.
inline std::optional<SessionParams> session_of(const std::optional<SessionParams>& params,
                                               const std::string& session_id) {
  if (params || session_id.empty()) return params;
  return SessionParams{.id = session_id};
}

}  // namespace espalier::server
