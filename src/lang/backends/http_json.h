// What the HTTP back ends share of JSON: reading answers, writing media. The functions keep no
// state and are thread-safe. Internal to the room.
#pragma once

#include <boost/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "lang/backend.h"

namespace espalier::lang {

// kDataLoss, with the beginning of the text, for what is no JSON object.
Result<boost::json::object> parse_answer(std::string_view text);

// A member by its path ("usage.prompt_tokens"); null when it is not there or null.
const boost::json::value* find_member(const boost::json::object& object, std::string_view path);
std::string string_at(const boost::json::object& object, std::string_view path);  // "" by default
int64_t integer_at(const boost::json::object& object, std::string_view path);     // 0 by default
double number_at(const boost::json::object& object, std::string_view path);       // 0 by default

// Sets a member from an option; an absent option and an empty list or text leave no member.
template <typename T>
void set_member(boost::json::object& object, std::string_view name, const std::optional<T>& value) {
  if (value) object[name] = *value;
}
inline void set_member(boost::json::object& object, std::string_view name,
                       const std::optional<EarlyStopping>& value) {
  if (!value) return;
  if (*value == EarlyStopping::kNever)
    object[name] = "never";
  else
    object[name] = *value == EarlyStopping::kYes;
}
template <typename T>
void set_members(boost::json::object& object, std::string_view name, const std::vector<T>& values) {
  if (!values.empty()) object[name] = boost::json::value_from(values);
}
inline void set_member(boost::json::object& object, std::string_view name,
                       const std::string& value) {
  if (!value.empty()) object[name] = value;
}
template <typename T>
void set_member(boost::json::object& object, std::string_view name, const std::vector<T>& values) {
  set_members(object, name, values);
}
// A member that is a text or a number, as text ("matched" of a finish); "" when it is not there.
std::string text_at(const boost::json::object& object, std::string_view path);

// A file's bytes in base64, or those of a "data:TYPE;base64,..." path.
struct MediaData {
  std::string type;  // "image/png"
  std::string base64;
};
Result<MediaData> read_media(const Media& media);
// The bytes themselves.
Result<std::string> read_media_bytes(const Media& media);

// The parts of a message as OpenAI's content: a string, or a list where there are images.
Result<boost::json::value> openai_content(const Message& message);

}  // namespace espalier::lang
