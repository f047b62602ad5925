// Templates against what jinja2 makes of them (tests/compat/text/make_template_goldens.py).
#include "text/template/chat_template.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <chrono>
#include <cstdlib>
#include <fstream>

#include "base/mapped_file.h"
#include "base/rng.h"

namespace espalier {
namespace {

namespace json = boost::json;
using ::testing::HasSubstr;

const std::filesystem::path kGoldens = "tests/golden/templates";

// The goldens' clock: 2024-07-26 09:05:07, wherever the test runs.
std::time_t golden_time() {
  std::tm local{};
  local.tm_year = 2024 - 1900;
  local.tm_mon = 6;
  local.tm_mday = 26;
  local.tm_hour = 9;
  local.tm_min = 5;
  local.tm_sec = 7;
  local.tm_isdst = -1;
  return std::mktime(&local);
}

Result<std::string> render(std::string_view source, const json::object& variables = {}) {
  Result<ChatTemplate> compiled = ChatTemplate::compile(source);
  if (!compiled) return fail(compiled.error());
  return compiled->render(variables, golden_time());
}

void expect_golden(const std::string& name, std::string_view source, const json::object& entry) {
  const Result<std::string> result = render(source, entry.at("variables").as_object());
  if (const json::value* output = entry.if_contains("output")) {
    ASSERT_TRUE(result.has_value()) << name << ": " << result.error().to_string();
    EXPECT_EQ(*result, std::string(output->as_string())) << name;
    return;
  }
  const std::string expected(entry.at("error").as_string());
  ASSERT_FALSE(result.has_value())
      << name << " should fail with " << expected << ", gave " << *result;
  EXPECT_EQ(result.error().code(), StatusCode::kInvalidArgument) << name;
  // What the template itself says comes back as it is.
  constexpr std::string_view kRaised = "TemplateError: ";
  if (expected.starts_with(kRaised)) {
    EXPECT_EQ(result.error().message(), expected.substr(kRaised.size())) << name;
  }
  // So does what jinja2 says of undefined values.
  constexpr std::string_view kUndefined = "UndefinedError: ";
  if (expected.starts_with(kUndefined)) {
    EXPECT_EQ(result.error().message(), expected.substr(kUndefined.size())) << name;
  }
}

TEST(ChatTemplate, RendersAsTheReference) {
  int num_cases = 0;
  for (const auto& file : std::filesystem::directory_iterator(kGoldens)) {
    const json::value golden = json::parse(read_text_file(file.path()).value());
    const std::string name = file.path().stem().string();
    if (const json::array* edges = golden.if_array()) {
      for (const json::value& edge : *edges) {
        expect_golden(std::string(edge.at("name").as_string()), edge.at("template").as_string(),
                      edge.as_object());
        ++num_cases;
      }
      continue;
    }
    for (const json::value& entry : golden.at("cases").as_array()) {
      expect_golden(name, golden.at("template").as_string(), entry.as_object());
      ++num_cases;
    }
  }
  EXPECT_GT(num_cases, 140);
}

TEST(ChatTemplate, ErrorsNameTheLine) {
  const auto message = [](std::string_view source) { return render(source).error().message(); };
  EXPECT_THAT(message("a\nb\n{% if x %}"), HasSubstr("line 3"));
  EXPECT_THAT(message("\n{{ a b }}"), HasSubstr("line 2: expected"));
  EXPECT_THAT(message("{% include 'x' %}"), HasSubstr("'include'"));
  EXPECT_THAT(message("{{ 'open }}"), HasSubstr("string has no end"));
  EXPECT_THAT(message("{% break %}"), HasSubstr("outside of a loop"));
  EXPECT_THAT(message("\n\n{{ 1 | nosuch }}"), HasSubstr("line 3: no filter named 'nosuch'"));
}

TEST(ChatTemplate, RunawaysEnd) {
  const auto code = [](std::string_view source) {
    const auto result = render(source);
    return result ? StatusCode::kOk : result.error().code();
  };
  constexpr auto kTooMuch = StatusCode::kResourceExhausted;
  EXPECT_EQ(code("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"),
            kTooMuch);
  EXPECT_EQ(code("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), kTooMuch);
  EXPECT_EQ(code("{{ 'a' * 99999999999 }}"), kTooMuch);
  EXPECT_EQ(code("{{ [0] * 99999999999 }}"), kTooMuch);
  EXPECT_EQ(code("{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(99) %}"
                 "{% set ns.s = ns.s ~ ns.s %}{% endfor %}"),
            kTooMuch);
  EXPECT_EQ(code("{% set x = 'a' * 1000000 %}{% for i in range(9999) %}{{ x }}{% endfor %}"),
            kTooMuch);
  const auto repeated = [](std::string_view text, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += text;
    return out;
  };
  EXPECT_NE(code("{{ " + repeated("(", 5000) + "1" + repeated(")", 5000) + " }}"), StatusCode::kOk);
  EXPECT_NE(code("{{ " + repeated("-", 5000) + "1 }}"), StatusCode::kOk);
  EXPECT_NE(code("{{ " + repeated("not ", 5000) + "1 }}"), StatusCode::kOk);
  EXPECT_NE(code("{{ 1" + repeated("+1", 4000) + " }}"), StatusCode::kOk);
  EXPECT_NE(code("{{ 'a'" + repeated("|upper", 4000) + " }}"), StatusCode::kOk);
  EXPECT_NE(code(repeated("{% if 1 %}", 5000)), StatusCode::kOk);
  EXPECT_EQ(code("{{ 1" + repeated("+1", 300) + " }}"), StatusCode::kOk);
  EXPECT_NE(code("{{ 9223372036854775807 + 1 }}"), StatusCode::kOk);
  EXPECT_NE(code("{{ (-9223372036854775807 - 1) // -1 }}"), StatusCode::kOk);
  // A namespace that holds itself is freed (else the leak sanitizer reports it).
  EXPECT_EQ(code("{% set ns = namespace() %}{% set ns.me = ns %}"), StatusCode::kOk);
}

// Steps are cheap beside what some of them do to long texts: the clock ends those.
TEST(ChatTemplate, TimeIsLimited) {
  for (const std::string_view costly :
       {"x.split(' ')", "x[::-1]", "x | title", "x | indent(3)", "x.upper()", "x | trim",
        "'b' in x", "x | length", "x.replace('a', 'bc')", "x | tojson"}) {
    const auto compiled = ChatTemplate::compile(
        fmt::format("{{% set x = 'a ' * 300000 %}}{{% for i in range(99999) %}}"
                    "{{% set y = {} %}}{{% endfor %}}",
                    costly));
    ASSERT_TRUE(compiled) << compiled.error().to_string();
    const auto start = std::chrono::steady_clock::now();
    const auto rendered = compiled->render({}, golden_time(), 0.02);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    ASSERT_FALSE(rendered) << costly;
    EXPECT_EQ(rendered.error().code(), StatusCode::kResourceExhausted) << costly;
    EXPECT_LT(seconds.count(), 3) << costly;  // one of them and a busy processor
  }
}

TEST(ChatTemplate, FindsTheTemplateOfAFolder) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / "espalier_chat_template";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  EXPECT_EQ(find_chat_template(folder).error().code(), StatusCode::kNotFound);
  std::ofstream(folder / "tokenizer_config.json")
      << R"({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template":
          [{"name": "rag", "template": "R"}, {"name": "default", "template": "D"}]})";
  EXPECT_EQ(find_chat_template(folder)->source, "D");
  EXPECT_EQ(find_chat_template(folder)->bos_token, "<s>");
  EXPECT_EQ(find_chat_template(folder)->eos_token, "</s>");
  std::ofstream(folder / "chat_template.jinja") << "J";
  EXPECT_EQ(find_chat_template(folder)->source, "J");
  std::ofstream(folder / "tokenizer_config.json") << "{";
  EXPECT_EQ(find_chat_template(folder).error().code(), StatusCode::kDataLoss);
  std::filesystem::remove_all(folder);
}

// Whatever a template holds, compiling and rendering end in text or an error.
TEST(ChatTemplate, MutatedTemplatesNeverCrash) {
  constexpr uint64_t kSeed = 12;
  Rng rng(kSeed);
  std::vector<std::string> sources;
  std::vector<json::object> variables;
  for (const auto& file : std::filesystem::directory_iterator(kGoldens)) {
    const json::value golden = json::parse(read_text_file(file.path()).value());
    const json::array entries =
        golden.is_array() ? golden.as_array() : golden.at("cases").as_array();
    for (const json::value& entry : entries) {
      const json::value& source = golden.is_array() ? entry.at("template") : golden.at("template");
      sources.emplace_back(source.as_string());
      variables.push_back(entry.at("variables").as_object());
    }
  }
  static constexpr std::string_view kPieces[] = {
      "{{",   "}}",   "{%", "%}",           "-%}", "|",    "(", ")",    "[",
      "]",    "'",    ":",  "-1",           ".",   ",",    "~", "not ", " in ",
      " is ", "none", "x",  "999999999999", "**",  "\xFF", "{#"};
  int num_rendered = 0;
  for (int round = 0; round < 6000; ++round) {
    const size_t which = rng.below(sources.size());
    std::string source = sources[which];
    for (uint64_t n = 1 + rng.below(3); n > 0 && !source.empty(); --n) {
      const size_t at = rng.below(source.size());
      const std::string_view piece = kPieces[rng.below(std::size(kPieces))];
      if (rng.below(3) == 0) {
        source.erase(at, 1 + rng.below(6));
      } else if (rng.below(3) == 0) {  // a part of another template
        const std::string& other = sources[rng.below(sources.size())];
        source.insert(at, other.substr(rng.below(other.size()), rng.below(30)));
      } else {
        source.replace(at, rng.below(3), piece);
      }
    }
    num_rendered += render(source, variables[which]).has_value();
  }
  EXPECT_GT(num_rendered, 300);
}

}  // namespace
}  // namespace espalier
