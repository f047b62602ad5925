#include "apps/kv_events_setting.h"

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <limits>
#include <utility>

namespace espalier::apps {

namespace {

constexpr int32_t kEventsDefault = 10000;
constexpr std::string_view kEndpointDefault = "tcp://*:5557";

struct KvEventsSetting {
  std::string publisher = "http";
  int32_t buffer_steps = kEventsDefault;
  bool enabled = true;
  KvEventsConfig zmq;
};

Status read_text(std::string_view name, const boost::json::value& member, std::string& out) {
  if (!member.is_string())
    return invalid_argument("{} is {}, but must be text", name, boost::json::serialize(member));
  out = member.get_string();
  return {};
}

Status read_buffer_steps(const boost::json::value& member, int32_t& out) {
  if (!member.is_int64() || member.get_int64() < 1 ||
      member.get_int64() > std::numeric_limits<int32_t>::max())
    return invalid_argument(
        "buffer_steps is {}, but must be a whole number above 0: the events that are kept",
        boost::json::serialize(member));
  out = static_cast<int32_t>(member.get_int64());
  return {};
}

Status read_member(std::string_view key, const boost::json::value& member,
                   KvEventsSetting& setting) {
  if (key == "publisher") {
    ESP_RETURN_IF_ERROR(read_text(key, member, setting.publisher));
    if (setting.publisher != "null" && setting.publisher != "http" && setting.publisher != "zmq")
      return invalid_argument(
          "publisher is {}, but must be \"http\" (GET /kv_events), \"zmq\" or \"null\"",
          boost::json::serialize(member));
    return {};
  }
  if (key == "buffer_steps") return read_buffer_steps(member, setting.buffer_steps);
  if (key == "endpoint") return read_text(key, member, setting.zmq.endpoint);
  if (key == "topic") return read_text(key, member, setting.zmq.topic);
  if (key == "replay_endpoint")
    return member.is_null() ? Status() : read_text(key, member, setting.zmq.replay_endpoint);
  if (key == "enable_kv_cache_events") {  // vLLM's switch
    if (!member.is_bool())
      return invalid_argument("{} is {}, but must be true or false", key,
                              boost::json::serialize(member));
    setting.enabled = member.get_bool();
    return {};
  }
  return invalid_argument(
      "there is no '{}': give publisher, buffer_steps, endpoint, replay_endpoint and topic", key);
}

}  // namespace

Status read_kv_events_config(std::string_view text, int32_t& num_events,
                             KvEventsConfig& published) {
  boost::system::error_code failed;
  const boost::json::value value = boost::json::parse(text, failed);
  if (failed || !value.is_object())
    return invalid_argument("'{}' is no JSON object such as {{\"publisher\": \"http\"}}", text);
  KvEventsSetting setting;
  for (const auto& [key, member] : value.as_object())
    ESP_RETURN_IF_ERROR(read_member(key, member, setting));
  const bool is_zmq = setting.publisher == "zmq";
  if (!is_zmq && (!setting.zmq.endpoint.empty() || !setting.zmq.replay_endpoint.empty() ||
                  !setting.zmq.topic.empty()))
    return invalid_argument(
        "endpoint, replay_endpoint and topic are of the publisher \"zmq\": add "
        "\"publisher\": \"zmq\" or leave them out");
  const bool kept = setting.enabled && setting.publisher != "null";
  num_events = kept ? setting.buffer_steps : 0;
  published = kept && is_zmq ? std::move(setting.zmq) : KvEventsConfig{};
  if (kept && is_zmq && published.endpoint.empty()) published.endpoint = kEndpointDefault;
  return {};
}

}  // namespace espalier::apps
