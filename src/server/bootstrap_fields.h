// The fields by which a request's prompt is computed on another server (docs/disaggregation.md), in
// every dialect: SGLang's bootstrap_host, bootstrap_port and bootstrap_room.
#pragma once

#include <optional>
#include <string>

#include "engine/requests/request.h"
#include "server/json_fields.h"

namespace espalier::server {

struct BootstrapFields {
  PerItem<std::string> host;
  PerItem<std::optional<int32_t>> port;
  PerItem<std::optional<uint64_t>> room;

  Status check_size(size_t n) const {
    ESP_RETURN_IF_ERROR(host.check_size("bootstrap_host", n));
    ESP_RETURN_IF_ERROR(port.check_size("bootstrap_port", n));
    return room.check_size("bootstrap_room", n);
  }

  // Prompt i's. Where one room is given for a batch, prompts have the rooms from there on.
  std::optional<Bootstrap> at(size_t i) const {
    const std::optional<uint64_t>* const stated = room.at(i);
    if (stated == nullptr || !*stated) return std::nullopt;
    Bootstrap bootstrap{.room = **stated + (room.is_list ? 0 : i)};
    if (const std::string* const name = host.at(i)) bootstrap.host = *name;
    if (const auto* const number = port.at(i)) bootstrap.port = number->value_or(bootstrap.port);
    return bootstrap;
  }
};

// The rows of a table whose T has a BootstrapFields `bootstrap`.
template <typename T>
void append_bootstrap_fields(Fields<T>& fields) {
  fields.push_back(field<T>(
      "bootstrap_host", "the prefill server's host, for a decode server",
      [](T & t) -> auto& { return t.bootstrap.host; }));
  fields.push_back(field<T>(
      "bootstrap_port", "its bootstrap port; 8998 where absent",
      [](T & t) -> auto& { return t.bootstrap.port; }));
  fields.push_back(field<T>(
      "bootstrap_room", "the number by which prefill and decode server find each other",
      [](T & t) -> auto& { return t.bootstrap.room; }));
}

}  // namespace espalier::server
