#include "server/session_fields.h"

namespace espalier::server {
namespace {

const Fields<SessionParams>& session_params_fields() {
  using P = SessionParams;
  static const Fields<P> fields = [] {
    Fields<P> f = {
        field<P>("id", "the session", &P::id),
        field<P>("rid",
                 "the request to continue; absent: from nothing, or in a streaming session "
                 "the last one",
                 &P::rid),
        field<P>("offset", "tokens to keep of what is continued; 0: all", &P::offset),
        field<P>("replace", "drop all that continued rid before", &P::replace),
        field<P>("drop_previous_output", "continue rid's prompt, without its output",
                 &P::drop_previous_output),
    };
    f[0].required = true;
    return f;
  }();
  return fields;
}

}  // namespace

Status read_session_params(const Json& value, std::string_view where,
                           std::optional<SessionParams>& out) {
  if (!is_set(value)) return {};
  return read_fields(session_params_fields(), value, std::string(where) + ".", out.emplace());
}

std::string session_params_schema() { return schema_of(session_params_fields()); }

}  // namespace espalier::server
