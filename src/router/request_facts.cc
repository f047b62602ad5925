#include "router/request_facts.h"

#include <algorithm>
#include <array>
#include <boost/json/basic_parser_impl.hpp>
#include <cstring>
#include <utility>
#include <vector>

namespace espalier::router {

namespace json = boost::json;
using boost::system::error_code;

namespace {

constexpr size_t kDepthMax = 128;
constexpr int64_t kTextBytesPerToken = 4;  // of text, about
constexpr int64_t kAnswerTokens = 16;      // where a request does not state how many
constexpr int64_t kAnswerTokensMax = int64_t{1} << 31, kSamplesMax = 1024,
                  kPromptsMax = int64_t{1} << 20;
constexpr char kBoundary = '\x1f';  // between strings: "ab" "c" is not "a" "bc"

// The callbacks that Boost.JSON's parser makes.
class FactsHandler {
 public:
  static constexpr size_t max_object_size = static_cast<size_t>(-1);
  static constexpr size_t max_array_size = static_cast<size_t>(-1);
  static constexpr size_t max_key_size = static_cast<size_t>(-1);
  static constexpr size_t max_string_size = static_cast<size_t>(-1);

  explicit FactsHandler(std::span<const std::string_view> fields)
      : fields_(fields), prompts_(fields.size()) {}

  RequestFacts take() {
    for (std::string& prompt : prompts_) {
      if (facts_.prompt.empty()) {
        facts_.prompt = std::move(prompt);
      } else {
        facts_.prompt += prompt;
      }
    }
    return std::move(facts_);
  }

  bool on_document_begin(error_code&) { return true; }
  bool on_document_end(error_code&) { return true; }
  bool on_object_begin(error_code&) { return enter(); }
  bool on_object_end(size_t, error_code&) { return leave(); }
  bool on_array_begin(error_code&) {
    count_prompt();
    return enter();
  }
  bool on_array_end(size_t, error_code&) { return leave(); }

  bool on_key_part(json::string_view part, size_t, error_code&) {
    if (depth_ <= 2) key_.append(part.data(), part.size());
    return true;
  }
  bool on_key(json::string_view part, size_t, error_code&) {
    if (depth_ > 2) return true;
    key_.append(part.data(), part.size());
    if (depth_ == 1) {
      const auto field = std::ranges::find(fields_, std::string_view(key_));
      prompt_ = field == fields_.end() ? nullptr
                                       : &prompts_[static_cast<size_t>(field - fields_.begin())];
      name_ = field_named(key_);
      number_ = number_named(key_);
      in_session_ = key_ == "session_params";
      in_options_ = key_ == "sampling_params" || key_ == "options";
    } else {
      name_ = in_session_ && key_ == "id" ? &facts_.session : nullptr;
      number_ = in_options_ ? number_named(key_) : nullptr;
    }
    key_.clear();
    return true;
  }

  bool on_string_part(json::string_view part, size_t, error_code&) {
    add(part);
    return true;
  }
  bool on_string(json::string_view part, size_t, error_code&) {
    add(part);
    if (prompt_ != nullptr) {
      count_prompt();
      *prompt_ += kBoundary;
      facts_.has_text = true;
    }
    return true;
  }
  bool on_number_part(json::string_view, error_code&) { return true; }
  bool on_int64(int64_t number, json::string_view, error_code&) { return add_id(number); }
  bool on_uint64(uint64_t number, json::string_view, error_code&) {
    return add_id(static_cast<int64_t>(number));
  }
  bool on_double(double number, json::string_view, error_code&) {
    // 3.0 counts as 3 for workers. What exceeds the bounds is wrong there too.
    if (number > -1e15 && number < 1e15) raise(static_cast<int64_t>(number));
    return true;
  }
  bool on_bool(bool, error_code&) { return true; }
  bool on_null(error_code&) { return true; }
  bool on_comment_part(json::string_view, error_code&) { return true; }
  bool on_comment(json::string_view, error_code&) { return true; }

 private:
  std::string* field_named(std::string_view key) {
    if (key == "model") return &facts_.model;
    if (key == "lora_path") return &facts_.adapter;
    if (key == "session_id") return &facts_.session;
    if (key == "extra_key") return &facts_.extra_key;
    if (key == "cache_salt") return &facts_.cache_salt;
    return nullptr;
  }
  int64_t* number_named(std::string_view key) {
    static constexpr std::array<std::string_view, 6> kAnswerNames = {
        "max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "n_predict",
        "num_predict"};
    if (key == "priority") return &facts_.priority;
    if (key == "n") return &facts_.num_samples;
    const bool is_answer = std::ranges::find(kAnswerNames, key) != kAnswerNames.end();
    return is_answer ? &facts_.answer_tokens : nullptr;
  }
  void raise(int64_t number) {
    if (number_ != nullptr) *number_ = std::max(*number_, number);
  }
  // Of a list of prompts: texts, or lists of token ids. Messages are objects.
  void count_prompt() {
    if (prompt_ != nullptr && depth_ == 2) facts_.num_prompts = ++num_listed_;
  }
  bool enter() {
    ++depth_;
    if (depth_ > 1 && !(depth_ == 2 && in_session_)) name_ = nullptr;  // names are plain strings
    return true;
  }
  bool leave() {
    --depth_;
    name_ = nullptr;
    return true;
  }
  void add(json::string_view part) {
    if (name_ != nullptr) name_->append(part.data(), part.size());
    if (prompt_ != nullptr) prompt_->append(part.data(), part.size());
  }
  bool add_id(int64_t number) {
    raise(number);
    if (prompt_ == nullptr) return true;
    const auto id = static_cast<int32_t>(number);
    char bytes[sizeof id];
    std::memcpy(bytes, &id, sizeof id);
    prompt_->append(bytes, sizeof bytes);
    facts_.has_ids = true;
    return true;
  }

  const std::span<const std::string_view> fields_;
  std::vector<std::string> prompts_;  // by field
  RequestFacts facts_;
  std::string key_;
  std::string* prompt_ = nullptr;  // of the top member under way, where it is a prompt's field
  std::string* name_ = nullptr;    // where the next string belongs, where it is a name
  int64_t* number_ = nullptr;      // likewise, the next number
  bool in_session_ = false, in_options_ = false;
  int64_t num_listed_ = 0;
  int depth_ = 0;
};

}  // namespace

RequestFacts read_facts(std::string_view body, std::span<const std::string_view> fields) {
  json::parse_options options;
  options.max_depth = kDepthMax;
  json::basic_parser<FactsHandler> parser(options, fields);
  error_code ec;
  const size_t n = parser.write_some(false, body.data(), body.size(), ec);
  const bool is_all = body.find_first_not_of(" \t\r\n", n) == std::string_view::npos;
  return ec || !is_all ? RequestFacts{} : parser.handler().take();
}

std::vector<int32_t> RequestFacts::ids() const {
  if (!has_ids || has_text) return {};
  std::vector<int32_t> out(prompt.size() / sizeof(int32_t));
  std::memcpy(out.data(), prompt.data(), out.size() * sizeof(int32_t));
  return out;
}

RequestCost request_cost(const RequestFacts& facts) {
  const int64_t stated = facts.answer_tokens < 0 ? kAnswerTokens : facts.answer_tokens;
  // An id takes as many bytes of the prompt as a token of text does, about.
  return {.prompt_tokens = std::ssize(facts.prompt) / kTextBytesPerToken,
          .answer_tokens = std::min(stated, kAnswerTokensMax) *
                           std::clamp<int64_t>(facts.num_samples, 1, kSamplesMax) *
                           std::min<int64_t>(facts.num_prompts, kPromptsMax),
          .has_several_prompts = facts.num_prompts > 1,
          .priority = facts.priority};
}

RoutedRequest routed_request(RequestFacts facts, std::string_view tenant) {
  RoutedRequest out;
  std::string name_space;
  for (const std::string_view part :
       {std::string_view(facts.model), std::string_view(facts.adapter), tenant,
        std::string_view(facts.extra_key), std::string_view(facts.cache_salt)}) {
    name_space += part;
    name_space += kBoundary;
  }
  out.name_space = name_space_hash(name_space);
  out.key = text_key(facts.prompt, out.name_space);
  out.num_tokens = static_cast<int64_t>(facts.prompt.size()) / kTextBytesPerToken;
  out.model = std::move(facts.model);
  out.adapter = std::move(facts.adapter);
  out.session = std::move(facts.session);
  return out;
}

}  // namespace espalier::router
