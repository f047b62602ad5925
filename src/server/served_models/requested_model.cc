#include "server/served_models/requested_model.h"

#include <algorithm>
#include <boost/json/basic_parser_impl.hpp>

#include "net/multipart.h"

namespace espalier::server {
namespace {

namespace json = boost::json;
using boost::system::error_code;

constexpr size_t kDepthMax = 128;
constexpr std::string_view kMember = "model";
constexpr std::string_view kOllamaMember = "name";  // "model" goes before it, whatever the order

// The callbacks that Boost.JSON's parser makes; one that returns false ends the reading.
class ModelHandler {
 public:
  static constexpr size_t max_object_size = static_cast<size_t>(-1);
  static constexpr size_t max_array_size = static_cast<size_t>(-1);
  static constexpr size_t max_key_size = static_cast<size_t>(-1);
  static constexpr size_t max_string_size = static_cast<size_t>(-1);

  explicit ModelHandler(bool is_ollama) : is_ollama_(is_ollama) {}

  std::string take() {
    if (found_) return std::move(name_);
    return has_other_ ? std::move(other_name_) : std::string();
  }

  bool on_document_begin(error_code&) { return true; }
  bool on_document_end(error_code&) { return true; }
  bool on_object_begin(error_code&) { return enter(); }
  bool on_object_end(size_t, error_code&) { return leave(); }
  bool on_array_begin(error_code&) { return enter(); }
  bool on_array_end(size_t, error_code&) { return leave(); }
  bool on_key_part(json::string_view part, size_t, error_code&) {
    if (depth_ == 1) key_.append(part.data(), part.size());
    return true;
  }
  bool on_key(json::string_view part, size_t, error_code&) {
    if (depth_ != 1) return true;
    key_.append(part.data(), part.size());
    is_model_ = key_ == kMember;
    is_other_ = is_ollama_ && key_ == kOllamaMember;
    if (is_other_) {
      other_name_.clear();
      has_other_ = false;
    }
    key_.clear();
    return true;
  }
  bool on_string_part(json::string_view part, size_t, error_code&) { return add(part); }
  bool on_string(json::string_view part, size_t, error_code& ec) {
    add(part);
    if (is_other_ && depth_ == 1) has_other_ = true;
    if (!is_named()) return true;
    found_ = true;
    ec = json::make_error_code(json::error::extra_data);  // what follows need not be read
    return false;
  }
  bool on_number_part(json::string_view, error_code&) { return true; }
  bool on_int64(int64_t, json::string_view, error_code&) { return true; }
  bool on_uint64(uint64_t, json::string_view, error_code&) { return true; }
  bool on_double(double, json::string_view, error_code&) { return true; }
  bool on_bool(bool, error_code&) { return true; }
  bool on_null(error_code&) { return true; }
  bool on_comment_part(json::string_view, error_code&) { return true; }
  bool on_comment(json::string_view, error_code&) { return true; }

 private:
  bool is_named() const { return is_model_ && depth_ == 1; }
  bool enter() {
    ++depth_;
    return true;
  }
  bool leave() {
    --depth_;
    return true;
  }
  bool add(json::string_view part) {
    if (is_named()) name_.append(part.data(), part.size());
    if (is_other_ && depth_ == 1) other_name_.append(part.data(), part.size());
    return true;
  }

  const bool is_ollama_;
  std::string key_, name_, other_name_;
  bool is_model_ = false, is_other_ = false, found_ = false, has_other_ = false;
  int depth_ = 0;
};

std::string model_of_json(std::string_view body, bool is_ollama) {
  json::parse_options options;
  options.max_depth = kDepthMax;
  json::basic_parser<ModelHandler> parser(options, is_ollama);
  error_code ec;
  parser.write_some(false, body.data(), body.size(), ec);
  return parser.handler().take();
}

std::string model_of_form(std::string_view content_type, std::string_view body) {
  const auto parts = net::parse_form_data(content_type, body);
  if (!parts) return {};
  const auto named = std::ranges::find(*parts, kMember, &net::FormPart::name);
  return named == parts->end() ? std::string() : std::string(named->content);
}

}  // namespace

std::string requested_model(const net::HttpRequest& request) {
  if (auto stated = request.query_param(kMember)) return *std::move(stated);
  const std::string* const type = request.header("Content-Type");
  if (type != nullptr && type->starts_with("multipart/form-data"))
    return model_of_form(*type, request.body);
  return model_of_json(request.body, request.path.starts_with("/api/"));
}

}  // namespace espalier::server
