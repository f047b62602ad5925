#include "server/json_fields.h"

#include <algorithm>
#include <boost/json/serializer.hpp>
#include <boost/json/stream_parser.hpp>
#include <boost/json/value.hpp>
#include <charconv>
#include <cmath>
#include <limits>

#include "server/json_memory.h"
#include "server/json_writer.h"

namespace espalier::server {

namespace json = boost::json;

namespace {

// Of a body: a schema of 500 levels, which is what grammars take, within what holds it.
constexpr size_t kDepthMax = 512;
constexpr size_t kShownMax = 40;  // bytes of a value in a message
constexpr size_t kSamplesMax = 65536;
// Smaller bodies are not charged: their JSON takes 400 KB at most, once on each thread.
constexpr size_t kChargedBytesMin = 16 << 10;

Status mismatch(std::string_view where, std::string_view expected, const Json& value) {
  return invalid_argument("{} must be {}, but it is {}", where, expected, describe(value));
}

// The value as an integer; nothing when it is none, or outside int64 (and uint64 above it).
std::optional<int64_t> as_integer(const Json& value) {
  if (value.is_int64()) return value.get_int64();
  if (value.is_double()) {
    const double d = value.get_double();
    if (d == std::floor(d) && std::abs(d) < 9e15) return static_cast<int64_t>(d);
  }
  return std::nullopt;
}

}  // namespace

// Boost's parser stops at the end of the first value; what follows it must be white space. It
// throws only where memory runs out or a number is beyond its range, which is the sender's doing
// too.
Result<Json> parse_json(std::string_view text) {
  if (text.size() >= kChargedBytesMin)
    ESP_RETURN_IF_ERROR(JsonChargeScope::charge(json_bytes_max(text), "the body is JSON that"));
  json::parse_options options;
  options.max_depth = kDepthMax;
  json::error_code ec;
  try {
    json::stream_parser parser({}, options);
    const size_t used = parser.write_some(text.data(), text.size(), ec);
    if (!ec && used < text.size() &&
        text.find_first_not_of(" \t\r\n", used) != std::string_view::npos) {
      ec = json::error::extra_data;
    }
    if (!ec) parser.finish(ec);
    if (!ec) return parser.release();
    if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) {
      return fail(invalid_argument("the body is empty: JSON is expected"));
    }
    return fail(invalid_argument("the body is not valid JSON: {} at byte {}", ec.message(), used));
  } catch (const std::bad_alloc&) {
    return fail(error(StatusCode::kResourceExhausted,
                      "there is no memory for the JSON of this body: try again later"));
  } catch (const std::exception& e) {
    return fail(invalid_argument("the body is not valid JSON: {}", e.what()));
  }
}

// Long values are cut at the beginning of a character, since the message goes into JSON itself.
std::string describe(const Json& value) {
  const auto shown = [&] {
    char begin[kShownMax + 1];
    json::serializer writer;
    writer.reset(&value);
    std::string text(writer.read(begin, sizeof(begin)));
    if (text.size() > kShownMax) {
      size_t end = kShownMax;
      while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
      text = text.substr(0, end) + "...";
    }
    return text;
  };
  switch (value.kind()) {
    case json::kind::null:
      return "null";
    case json::kind::bool_:
      return value.get_bool() ? "the boolean true" : "the boolean false";
    case json::kind::int64:
    case json::kind::uint64:
      return "the number " + shown();
    case json::kind::double_:
      return fmt::format("the number {}", value.get_double());
    case json::kind::string:
      return "the string " + shown();
    case json::kind::array:
      return value.get_array().empty() ? "an empty list" : "a list";
    case json::kind::object:
      return "an object";
  }
  return "something else";
}

bool is_null(const Json& value) { return value.is_null(); }

// Clients send the defaults of fields that they do not use (null, false, an empty list); those are
// not a wish for a feature that is missing here, so they are accepted.
bool is_set(const Json& value) {
  switch (value.kind()) {
    case json::kind::null:
      return false;
    case json::kind::bool_:
      return value.get_bool();
    case json::kind::string:
      return !value.get_string().empty();
    case json::kind::object:
      return !value.get_object().empty();
    case json::kind::array:
      for (const Json& element : value.get_array()) {
        if (is_set(element)) return true;
      }
      return false;
    default:
      return true;
  }
}

Status refuse(const Json& value, std::string_view where, std::string_view until) {
  if (!is_set(value)) return {};
  return error(StatusCode::kUnimplemented, "{} {}: leave it out", where, until);
}

Status read_value(const Json& value, std::string_view where, bool& out) {
  if (!value.is_bool()) return mismatch(where, "true or false", value);
  out = value.get_bool();
  return {};
}

Status read_value(const Json& value, std::string_view where, EarlyStopping& out) {
  if (value.is_string() && value.get_string() == "never") {
    out = EarlyStopping::kNever;
    return {};
  }
  if (!value.is_bool()) return mismatch(where, "true, false or \"never\"", value);
  out = value.get_bool() ? EarlyStopping::kYes : EarlyStopping::kNo;
  return {};
}

// A whole number may be written as 3.0, as some JSON libraries do; 3.5 is refused and never
// rounded.
Status read_value(const Json& value, std::string_view where, int32_t& out) {
  const auto integer = as_integer(value);
  if (!integer) return mismatch(where, "an integer", value);
  if (*integer < std::numeric_limits<int32_t>::min() ||
      *integer > std::numeric_limits<int32_t>::max()) {
    return mismatch(where, "an integer of 32 bits", value);
  }
  out = static_cast<int32_t>(*integer);
  return {};
}

Status read_value(const Json& value, std::string_view where, uint64_t& out) {
  if (value.is_uint64()) {
    out = value.get_uint64();
    return {};
  }
  const auto integer = as_integer(value);
  if (!integer) return mismatch(where, "an integer", value);
  out = static_cast<uint64_t>(*integer);
  return {};
}

Status read_value(const Json& value, std::string_view where, float& out) {
  double number = 0;
  if (value.is_double()) {
    number = value.get_double();
  } else if (value.is_int64()) {
    number = static_cast<double>(value.get_int64());
  } else if (value.is_uint64()) {
    number = static_cast<double>(value.get_uint64());
  } else {
    return mismatch(where, "a number", value);
  }
  out = static_cast<float>(number);
  if (!std::isfinite(out)) return mismatch(where, "a number of moderate size", value);
  return {};
}

Status read_value(const Json& value, std::string_view where, std::string& out) {
  if (!value.is_string()) return mismatch(where, "a string", value);
  out.assign(value.get_string().data(), value.get_string().size());
  return {};
}

// One string stands for a list of one, as in `stop`.
Status read_value(const Json& value, std::string_view where, std::vector<std::string>& out) {
  out.clear();
  if (value.is_string()) {
    return read_value(value, where, out.emplace_back());
  }
  if (!value.is_array()) return mismatch(where, "a string or a list of strings", value);
  out.reserve(value.get_array().size());
  for (size_t i = 0; i < value.get_array().size(); ++i) {
    ESP_RETURN_IF_ERROR(
        read_value(value.get_array()[i], fmt::format("{}[{}]", where, i), out.emplace_back()));
  }
  return {};
}

Status read_value(const Json& value, std::string_view where, std::vector<TokenId>& out) {
  if (!value.is_array()) return mismatch(where, "a list of token ids", value);
  out.clear();
  out.reserve(value.get_array().size());
  for (const Json& element : value.get_array()) {
    if (element.is_int64() && element.get_int64() >= 0 &&
        element.get_int64() <= std::numeric_limits<TokenId>::max()) {
      out.push_back(static_cast<TokenId>(element.get_int64()));
      continue;
    }
    if (element.is_int64())
      return invalid_argument("{}[{}] is {}, an out-of-vocabulary token id", where, out.size(),
                              element.get_int64());
    return mismatch(fmt::format("{}[{}]", where, out.size()), "a token id", element);
  }
  return {};
}

Status read_value(const Json& value, std::string_view where, std::map<TokenId, float>& out) {
  if (!value.is_object()) return mismatch(where, "an object {token id: bias}", value);
  out.clear();
  for (const auto& member : value.get_object()) {
    TokenId id = 0;
    const json::string_view key = member.key();
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), id);
    if (parsed.ec != std::errc() || parsed.ptr != key.data() + key.size() || id < 0) {
      return invalid_argument("{} has the key \"{}\": keys must be token ids", where,
                              std::string_view(key));
    }
    ESP_RETURN_IF_ERROR(read_value(
        member.value(), fmt::format("{}[\"{}\"]", where, std::string_view(key)), out[id]));
  }
  return {};
}

Result<Elements> elements(const Json& value, std::string_view where, bool of_lists, bool& is_list) {
  Elements out;
  is_list = value.is_array();
  // A list of token ids is one value where an item's value is such a list.
  if (is_list && of_lists) {
    is_list = false;
    for (const Json& element : value.get_array()) is_list |= element.is_array();
  }
  if (!is_list) {
    out.emplace_back(&value, std::string(where));
    return out;
  }
  if (value.get_array().size() > kSamplesMax)
    return fail(invalid_argument("{} has {} entries, and one call may have {}", where,
                                 value.get_array().size(), kSamplesMax));
  for (size_t i = 0; i < value.get_array().size(); ++i) {
    out.emplace_back(&value.get_array()[i], fmt::format("{}[{}]", where, i));
  }
  return out;
}

Status for_each_member(
    const Json& value, std::string_view where,
    const std::function<Status(std::string_view name, const Json& member)>& visit) {
  if (!value.is_object()) {
    std::string_view name = where.empty() ? "the body" : where;
    if (name.ends_with('.')) name.remove_suffix(1);
    return mismatch(name, "a JSON object", value);
  }
  for (const auto& member : value.get_object()) {
    ESP_RETURN_IF_ERROR(
        visit(std::string_view(member.key().data(), member.key().size()), member.value()));
  }
  return {};
}

Status wrong_size(std::string_view name, size_t num_entries, size_t num_prompts) {
  return invalid_argument(
      "{} has {} {} for {} {}: give one value for all, or a list with one for each", name,
      num_entries, num_entries == 1 ? "entry" : "entries", num_prompts,
      num_prompts == 1 ? "prompt" : "prompts");
}

Status check_samples(size_t num_prompts, int32_t n) {
  const size_t samples = num_prompts * static_cast<size_t>(std::max(n, 1));
  if (samples <= kSamplesMax) return {};
  return invalid_argument(
      "n is {}: {} {} with {} samples each are more than one call may ask for: {}", n, num_prompts,
      num_prompts == 1 ? "prompt" : "prompts", n, kSamplesMax);
}

std::string field_help(const FieldRow& row) {
  std::string help(row.doc);
  if (!row.range.allowed.empty()) help += fmt::format("; {}", row.range.allowed);
  if (!row.absent.empty()) help += fmt::format("; default: {}", row.absent);
  return help;
}

std::string object_schema(
    const std::vector<std::tuple<std::string, std::string, std::string, bool>>& fields) {
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("type", "object").key("properties").begin_object();
  for (const auto& [name, schema, help, is_required] : fields) {
    w.key(name);
    // The description goes into the field's schema, which is an object.
    std::string text = schema.empty() ? "{}" : schema;
    std::string description;
    JsonWriter(description).value(help);
    text.insert(text.size() - 1, (text == "{}" ? "" : ",") + ("\"description\":" + description));
    w.raw(text);
  }
  w.end_object();
  w.key("required").begin_array();
  for (const auto& [name, schema, help, is_required] : fields) {
    if (is_required) w.value(name);
  }
  w.end_array().end_object();
  return out;
}

Status read_body(std::string_view body, bool& malformed,
                 const std::function<Status(const Json&)>& read) {
  const auto value = parse_json(body);
  const Status status = value ? read(*value) : value.error();
  malformed = status.code() == StatusCode::kInvalidArgument;
  return status;
}

namespace {

Status read_layer_range(const Json& value, const std::string& where, ControlRequest& out) {
  if (!value.is_array() || value.get_array().size() != 2)
    return mismatch(where, "a list of the first layer and the last", value);
  ESP_RETURN_IF_ERROR(read_value(value.get_array()[0], where + "[0]", out.first_layer));
  return read_value(value.get_array()[1], where + "[1]", out.last_layer);
}

}  // namespace

Status read_control_vector(const Json& value, std::string_view where,
                           std::optional<ControlRequest>& out) {
  ControlRequest& control = out.emplace();
  if (value.is_string()) return read_value(value, where, control.name);
  ESP_RETURN_IF_ERROR(
      for_each_member(value, where, [&](std::string_view name, const Json& member) -> Status {
        const std::string place = fmt::format("{}.{}", where, name);
        if (is_null(member)) return {};
        if (name == "name") return read_value(member, place, control.name);
        if (name == "scale") return read_value(member, place, control.scale);
        if (name == "layers") return read_layer_range(member, place, control);
        return invalid_argument("{} is not known: a control vector has name, scale and layers",
                                place);
      }));
  if (control.name.empty()) return invalid_argument("{}.name is missing", where);
  return {};
}

}  // namespace espalier::server
