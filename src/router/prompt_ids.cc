#include "router/prompt_ids.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <iterator>
#include <utility>

#include "router/route_table.h"

namespace espalier::router {

namespace json = boost::json;

namespace {

constexpr std::string_view kSpace = " \t\r\n";

// A member of an object, by its places in the text.
struct Member {
  std::string_view name, value;  // as they are written; a name without its quotes
  size_t begin = 0, end = 0;     // of both
};

// Reads the members of a JSON object without their values. Of a text that is no JSON it reads
// something, within the text.
class MemberReader {
 public:
  explicit MemberReader(std::string_view text) : text_(text) {
    skip_space();
    is_open_ = take('{');
  }

  bool next(Member& out) {
    skip_space();
    out.begin = at_;
    if (!is_open_ || at_ >= text_.size() || text_[at_] != '"') return false;
    skip_string();
    out.name = text_.substr(out.begin + 1, at_ - out.begin - 2);
    skip_space();
    if (!take(':')) return false;
    skip_space();
    const size_t value = at_;
    skip_value();
    out.end = at_;
    out.value = text_.substr(value, at_ - value);
    skip_space();
    is_open_ = take(',');
    return at_ <= text_.size();
  }

 private:
  bool take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void skip_space() { at_ = std::min(text_.find_first_not_of(kSpace, at_), text_.size()); }
  // Behind the closing quote.
  void skip_string() {
    for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_)
      if (text_[at_] == '\\') ++at_;
    at_ = std::min(at_ + 1, text_.size());
  }
  void skip_value() {
    int depth = 0;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      const bool closes = c == '}' || c == ']';
      if (depth == 0 && (closes || c == ',' || kSpace.find(c) != std::string_view::npos)) return;
      if (c == '"') {
        skip_string();
      } else {
        depth += c == '{' || c == '[' ? 1 : closes ? -1 : 0;
        ++at_;
      }
    }
  }

  const std::string_view text_;
  size_t at_ = 0;
  bool is_open_ = false;
};

bool is_set(std::string_view value) {
  if (value.empty() || value == "null" || value == "false" || value == R"("")") return false;
  return value.front() != '[' || value.find_first_not_of(kSpace, 1) != value.size() - 1;
}

}  // namespace

std::string body_with_ids(const IdsPlace& place, std::string_view body,
                          std::span<const int32_t> ids) {
  MemberReader reader(body);
  Member member, text;
  while (reader.next(member)) {
    if (member.name.find('\\') != std::string_view::npos) return {};  // it may be any name
    if (member.name == place.text) {
      if (text.end != 0 || member.value.empty() || member.value.front() != '"') return {};
      text = member;
    } else if (member.name == "add_special_tokens" ||  // false matters, and servers differ
               (std::ranges::find(place.kept_by, member.name) != place.kept_by.end() &&
                is_set(member.value))) {
      return {};
    }
  }
  if (place.text.empty()) {  // in front of the first member, of which a chat has one
    text.begin = text.end = body.find('{') + 1;
  } else if (text.end == 0) {
    return {};
  }
  std::string out(body.substr(0, text.begin));
  out.reserve(body.size() + ids.size() * 6);
  fmt::format_to(std::back_inserter(out), "\"{}\":[{}]{}", place.ids, fmt::join(ids, ","),
                 place.text.empty() ? "," : "");
  out += body.substr(text.end);
  return out;
}

TokenProbe make_token_probe(const TokenizePrompt& tokenize) {
  constexpr std::string_view kText =
      "The 24 routes of 1998,  two spaces\tand a tab:\n\n  def f(x): return x[0]*3.14 # don't\r\n"
      "Stra\xC3\x9F"
      "e, \xD0\xBC\xD0\xB8\xD1\x80, \xE4\xB8\x96\xE7\x95\x8C, e\xCC\x81, \xF0\x9F\x8C\xB3! ";
  constexpr std::string_view kTurns =
      R"({"role":"system","content":"Be brief."},{"role":"user","content":" Add 2 and 3\n"},)"
      R"({"role":"assistant","content":"5"},{"role":"user","content":"and 4?"})";
  constexpr std::string_view kCall =
      R"(,{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":)"
      R"({"name":"add","arguments":"{\"a\": 5}"}}]},)"
      R"({"role":"tool","tool_call_id":"c1","content":"9"})";
  constexpr std::string_view kTools =
      R"("tools":[{"type":"function","function":{"name":"add","description":"Adds","parameters":)"
      R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}}}])";
  const auto routes = passed_routes();
  const auto add = [&](std::string_view pattern, std::string body,
                       std::vector<TokenQuestion>& questions) {
    const auto route = std::ranges::find(routes, pattern, &PassedRoute::pattern);
    std::vector<int32_t> ids = tokenize(*route, body).ids;
    if (!ids.empty()) questions.push_back({std::move(body), std::move(ids)});
  };
  TokenProbe probe;
  add("/v1/completions", json::serialize(json::object{{"prompt", kText}}), probe.texts);
  constexpr std::string_view kChat = "/v1/chat/completions";
  add(kChat, fmt::format(R"({{"messages":[{}]}})", kTurns), probe.chats);
  add(kChat, fmt::format(R"({{"messages":[{}{}],{}}})", kTurns, kCall, kTools), probe.chats);
  return probe;
}

bool is_answered(const TokenQuestion& question, std::string_view answer) {
  boost::system::error_code failed;
  const json::value value = json::parse({answer.data(), answer.size()}, failed);
  const json::value* const tokens =
      !failed && value.is_object() ? value.as_object().if_contains("tokens") : nullptr;
  if (tokens == nullptr || !tokens->is_array() || question.ids.empty()) return false;
  return std::ranges::equal(tokens->as_array(), question.ids,
                            [](const json::value& theirs, int32_t id) {
                              return theirs.is_int64() && theirs.as_int64() == id;
                            });
}

}  // namespace espalier::router
