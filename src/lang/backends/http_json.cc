#include "lang/backends/http_json.h"

#include <fstream>
#include <iterator>

#include "base/base64.h"

namespace espalier::lang {
namespace {

std::string type_of(const Media& media) {
  const auto has = [&](std::string_view end) { return media.path.ends_with(end); };
  if (has(".jpg") || has(".jpeg")) return "image/jpeg";
  if (has(".gif")) return "image/gif";
  if (has(".webp")) return "image/webp";
  return media.kind == Media::Kind::kVideo ? "video/mp4" : "image/png";
}

}  // namespace

Result<boost::json::object> parse_answer(std::string_view text) {
  boost::json::error_code failed;
  boost::json::value value = boost::json::parse(text, failed);
  if (failed || !value.is_object())
    return fail(
        error(StatusCode::kDataLoss, "the answer is no JSON object: {}", text.substr(0, 120)));
  return std::move(value.get_object());
}

const boost::json::value* find_member(const boost::json::object& object, std::string_view path) {
  const boost::json::object* at = &object;
  while (true) {
    const size_t dot = path.find('.');
    const boost::json::value* value = at->if_contains(path.substr(0, dot));
    if (value == nullptr || value->is_null()) return nullptr;
    if (dot == std::string_view::npos) return value;
    if (!value->is_object()) return nullptr;
    at = &value->get_object();
    path.remove_prefix(dot + 1);
  }
}

std::string string_at(const boost::json::object& object, std::string_view path) {
  const auto* value = find_member(object, path);
  return value != nullptr && value->is_string() ? std::string(value->get_string()) : "";
}

double number_at(const boost::json::object& object, std::string_view path) {
  const auto* value = find_member(object, path);
  boost::json::error_code failed;
  const double number = value != nullptr ? value->to_number<double>(failed) : 0;
  return failed ? 0 : number;
}

std::string text_at(const boost::json::object& object, std::string_view path) {
  const boost::json::value* value = find_member(object, path);
  if (value == nullptr) return "";
  return value->is_string() ? std::string(value->get_string()) : boost::json::serialize(*value);
}

int64_t integer_at(const boost::json::object& object, std::string_view path) {
  return static_cast<int64_t>(number_at(object, path));
}

namespace {

Result<std::string> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    return fail(error(StatusCode::kNotFound, "the image or video \"{}\" cannot be read", path));
  return std::string{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace

Result<MediaData> read_media(const Media& media) {
  constexpr std::string_view kMark = ";base64,";
  if (media.path.starts_with("data:")) {
    const size_t at = media.path.find(kMark);
    if (at == std::string::npos)
      return fail(invalid_argument("data URLs must be base64: \"{}\"", media.path.substr(0, 60)));
    return MediaData{media.path.substr(5, at - 5), media.path.substr(at + kMark.size())};
  }
  ESP_ASSIGN_OR_RETURN(const std::string bytes, read_file(media.path));
  return MediaData{type_of(media), encode_base64(bytes)};
}

Result<std::string> read_media_bytes(const Media& media) {
  if (!media.path.starts_with("data:")) return read_file(media.path);
  ESP_ASSIGN_OR_RETURN(const MediaData data, read_media(media));
  std::string bytes;
  if (!decode_base64(data.base64, bytes))
    return fail(invalid_argument("a data URL is no base64: \"{}\"", media.path.substr(0, 60)));
  return bytes;
}

Result<boost::json::value> openai_content(const Message& message) {
  bool has_media = false;
  for (const Part& part : message.parts) has_media |= part.media.has_value();
  if (!has_media) return boost::json::value(message.text());
  boost::json::array parts;
  for (const Part& part : message.parts) {
    if (!part.media) {
      parts.push_back({{"type", "text"}, {"text", part.text}});
      continue;
    }
    ESP_ASSIGN_OR_RETURN(const MediaData data, read_media(*part.media));
    const char* kind = part.media->kind == Media::Kind::kVideo ? "video_url" : "image_url";
    parts.push_back(
        {{"type", kind}, {kind, {{"url", "data:" + data.type + ";base64," + data.base64}}}});
  }
  return boost::json::value(std::move(parts));
}

}  // namespace espalier::lang
