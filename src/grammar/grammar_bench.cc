// Conformance and speed of JSON Schema on real schemas:
//   xz -dc maskbench_dev.jsonl.xz | grammar_bench maskbench VOCABULARY.tiktoken [first [count]]
//   grammar_bench suite FILE.json ...      (the official suite's files)
// Prints a line for each failure to standard error and a table to standard output.
#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "fmt/core.h"
#include "grammar/conformance.h"
#include "grammar/grammar.h"
#include "grammar/schema/json_text.h"

namespace espalier::grammar {
namespace {

namespace json = boost::json;

std::string base64_decoded(std::string_view text) {
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  for (char c : text) {
    int v = c >= 'A' && c <= 'Z'   ? c - 'A'
            : c >= 'a' && c <= 'z' ? c - 'a' + 26
            : c >= '0' && c <= '9' ? c - '0' + 52
            : c == '+'             ? 62
            : c == '/'             ? 63
                                   : -1;
    if (v < 0) break;
    bits = bits << 6 | static_cast<uint32_t>(v);
    count += 6;
    if (count >= 8) {
      count -= 8;
      out += static_cast<char>(bits >> count & 0xff);
    }
  }
  return out;
}

// A vocabulary in tiktoken's format: a token in base64 and its rank on each line. One more id ends.
struct Vocabulary {
  std::vector<std::string> tokens;
  std::vector<std::string_view> views;
  VocabView view;
  std::map<std::string, TokenId, std::less<>> index;

  explicit Vocabulary(const std::string& path) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      const size_t space = line.find(' ');
      if (space == std::string::npos) continue;
      tokens.push_back(base64_decoded(std::string_view(line).substr(0, space)));
    }
    tokens.push_back("<end>");
    views.assign(tokens.begin(), tokens.end());
    view.token_bytes = views;
    view.eos_ids = view.special_ids = {static_cast<TokenId>(tokens.size() - 1)};
    for (size_t i = 0; i + 1 < tokens.size(); ++i)
      index.emplace(tokens[i], static_cast<TokenId>(i));
  }
  // Longest match first: not any tokenizer's own, but of its tokens.
  std::vector<TokenId> tokenized(std::string_view text) const {
    std::vector<TokenId> ids;
    while (!text.empty()) {
      for (size_t n = std::min<size_t>(text.size(), 12);; --n) {
        const auto it = index.find(text.substr(0, n));
        if (it != index.end()) {
          ids.push_back(it->second);
          text.remove_prefix(n);
          break;
        }
        if (n == 1) return {};
      }
    }
    return ids;
  }
};

double us_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
      .count();
}

std::string percentiles(std::vector<double> values) {
  if (values.empty()) return "-";
  std::ranges::sort(values);
  const auto at = [&](double q) {
    return values[static_cast<size_t>(q * double(values.size() - 1))];
  };
  return fmt::format("{:.1f} / {:.1f} / {:.1f} / {:.1f}", at(0.5), at(0.99), at(0.999),
                     values.back());
}

// As Python's json.dumps writes numbers; Boost writes 1E0 for 1.0.
std::string text_of(const json::value& v) {
  if (v.is_double()) {
    std::string text = fmt::format("{}", v.get_double());
    return text;
  }
  if (v.is_array()) {
    std::string out = "[";
    for (const auto& item : v.get_array()) out += (out.size() > 1 ? ", " : "") + text_of(item);
    return out + "]";
  }
  if (v.is_object()) {
    std::string out = "{";
    for (const auto& [key, item] : v.get_object()) {
      out +=
          (out.size() > 1 ? ", " : "") + json::serialize(json::string(key)) + ": " + text_of(item);
    }
    return out + "}";
  }
  return json::serialize(v);
}

struct Tally {
  int schemas = 0, right = 0, declined = 0, invalid_accepted = 0, valid_rejected = 0;
  std::vector<double> compile_us, mask_us;
  std::map<std::string, int> reasons;
};

// What a failure is about, for counting: the message without its pointer.
std::string reason_of(const Status& status) {
  const std::string& m = status.message();
  const size_t colon = m.starts_with("#") || m.starts_with("not of") || m.starts_with("(derived")
                           ? m.find(": ")
                           : std::string::npos;
  return std::string(status_code_name(status.code())) + " " +
         (colon == std::string::npos ? m : m.substr(colon + 2)).substr(0, 60);
}

void run_case(const std::string& name, const json::value& schema, const json::array& tests,
              const std::shared_ptr<const TokenTrie>& trie, const Vocabulary* vocab, Tally& tally) {
  ++tally.schemas;
  const auto start = std::chrono::steady_clock::now();
  const auto grammar = compile_grammar({.kind = GrammarSpec::Kind::kJsonSchema,
                                        .source = json::serialize(schema),
                                        .choices = {},
                                        .whitespace = Whitespace::kAny},
                                       trie);
  std::vector<uint32_t> words(static_cast<size_t>(trie->words_per_mask()));
  if (grammar) Matcher(*grammar).fill_mask(words);
  tally.compile_us.push_back(us_since(start));
  if (tally.compile_us.back() > 200'000) {
    fmt::print(stderr, "{}: slow: {:.0f} ms\n", name, tally.compile_us.back() / 1000);
  }
  const auto empty_language = [&] {
    return grammar.error().message().starts_with("the grammar matches nothing");
  };
  if (!grammar && !empty_language()) {
    ++tally.declined;
    ++tally.reasons[reason_of(grammar.error())];
    fmt::print(stderr, "{}: declined: {}\n", name, grammar.error().message());
    return;
  }
  bool right = true;
  for (const json::value& test : tests) {
    const std::string text = text_of(test.at("data"));
    bool accepted = false;
    if (grammar) {
      Matcher matcher(*grammar);
      const std::vector<TokenId> ids =
          vocab != nullptr ? vocab->tokenized(text) : std::vector<TokenId>();
      if (ids.empty()) {
        accepted = matcher.accept_bytes(text) && matcher.can_end();
      } else {
        accepted = true;
        for (TokenId id : ids) {
          const auto mask_start = std::chrono::steady_clock::now();
          matcher.fill_mask(words);
          const bool allowed = words[static_cast<size_t>(id) / 32] >> (id % 32) & 1;
          accepted = allowed && matcher.accept_token(id);
          tally.mask_us.push_back(us_since(mask_start));
          if (!accepted) break;
        }
        accepted = accepted && matcher.can_end();
      }
    }
    const bool valid = test.at("valid").as_bool();
    if (accepted == valid) continue;
    right = false;
    ++(valid ? tally.valid_rejected : tally.invalid_accepted);
    fmt::print(stderr, "{}: {}: {}\n", name, valid ? "valid rejected" : "invalid accepted",
               text.substr(0, 300));
  }
  tally.right += right;
}

void print(const Tally& tally) {
  fmt::print(
      "schemas {}  right {} ({:.1f} %)  declined {}  invalid accepted {}  valid rejected {}\n",
      tally.schemas, tally.right, 100.0 * tally.right / std::max(1, tally.schemas), tally.declined,
      tally.invalid_accepted, tally.valid_rejected);
  fmt::print("time to first mask, us: p50 / p99 / p99.9 / max  {}\n",
             percentiles(tally.compile_us));
  fmt::print("mask and commit, us:    p50 / p99 / p99.9 / max  {}\n", percentiles(tally.mask_us));
  std::vector<std::pair<int, std::string>> reasons;
  for (const auto& [reason, count] : tally.reasons) reasons.emplace_back(count, reason);
  std::ranges::sort(reasons, std::greater());
  for (size_t i = 0; i < std::min<size_t>(reasons.size(), 25); ++i) {
    fmt::print("{:6} {}\n", reasons[i].first, reasons[i].second);
  }
}

int wrong(const Status& status) {
  fmt::print(stderr, "grammar_bench: {}\n", status.message());
  return 1;
}

std::string_view string_at(const json::value& entry, std::string_view name) {
  const json::value* text = entry.as_object().if_contains(name);
  return text != nullptr && text->is_string() ? std::string_view(text->get_string())
                                              : std::string_view("(no name)");
}

int maskbench(int argc, char** argv) {
  const Vocabulary vocab(argv[2]);
  const auto trie = std::make_shared<const TokenTrie>(vocab.view);
  const long first = argc > 3 ? std::stol(argv[3]) : 0;
  const long count = argc > 4 ? std::stol(argv[4]) : 1'000'000;
  Tally tally;
  long index = 0;
  for (std::string line; std::getline(std::cin, line); ++index) {
    if (index < first || index >= first + count) continue;
    // Parsed as the other commands do, so that a line that is no case is a message, no exception.
    if (const auto readable = parse_schema_case(line); !readable)
      return wrong(readable.error().with_context(fmt::format("line {}", index + 1)));
    const json::value entry = parse_json_text(line, "the line").value();
    run_case(std::string(string_at(entry, "name")), entry.at("schema"),
             entry.at("tests").as_array(), trie, &vocab, tally);
  }
  print(tally);
  return 0;
}

int suite(int argc, char** argv) {
  std::vector<std::string> tokens;
  for (int b = 0; b < 256; ++b) tokens.emplace_back(1, static_cast<char>(b));
  const std::vector<std::string_view> views(tokens.begin(), tokens.end());
  VocabView view;
  view.token_bytes = views;
  const auto trie = std::make_shared<const TokenTrie>(view);
  Tally tally;
  for (int i = 2; i < argc; ++i) {
    const auto text = read_text_file(argv[i]);
    if (!text) return wrong(text.error());
    if (const auto readable = parse_suite_file(argv[i], *text); !readable)
      return wrong(readable.error());
    const json::value groups = parse_json_text(*text, "the file").value();
    for (const json::value& group : groups.as_array()) {
      run_case(fmt::format("{}: {}", argv[i], string_at(group, "description")), group.at("schema"),
               group.at("tests").as_array(), trie, nullptr, tally);
    }
  }
  print(tally);
  return 0;
}

// Conformance alone: FILE.jsonl, or a folder of the official suite.
int conformance(const std::string& path) {
  namespace fs = std::filesystem;
  SchemaTally tally;
  const auto judge = [&](const SchemaCase& test) {
    constexpr std::array<const char*, 4> kVerdicts = {"right", "valid rejected", "invalid accepted",
                                                      "declined"};
    const auto start = std::chrono::steady_clock::now();
    const SchemaOutcome outcome = check_schema_case(test);
    if (us_since(start) > 500'000) {
      fmt::print(stderr, "{}: slow: {:.0f} ms\n", test.name, us_since(start) / 1000);
    }
    tally.add(outcome);
    if (outcome.verdict == SchemaVerdict::kRight) return;
    fmt::print(stderr, "{}: {}: {}\n", test.name, kVerdicts[static_cast<size_t>(outcome.verdict)],
               outcome.detail.substr(0, 400));
  };
  if (fs::is_directory(path)) {
    const auto options = suite_options(path);
    if (!options) return wrong(options.error());
    const fs::path tests = fs::is_directory(fs::path(path) / "tests")
                               ? fs::path(path) / "tests/draft2020-12"
                               : fs::path(path);
    for (const auto& file : fs::directory_iterator(tests)) {
      if (file.path().extension() != ".json") continue;
      const auto text = read_text_file(file.path());
      if (!text) return wrong(text.error());
      const auto cases = parse_suite_file(file.path().filename().string(), *text, *options);
      if (!cases) return wrong(cases.error());
      for (const SchemaCase& test : *cases) judge(test);
    }
  } else {
    std::ifstream file(path);
    if (!file) return wrong(error(StatusCode::kNotFound, "{}: cannot be read", path));
    size_t number = 0;
    for (std::string line; std::getline(file, line);) {
      const auto test = parse_schema_case(line);
      if (!test) return wrong(test.error().with_context(fmt::format("{}:{}", path, number + 1)));
      ++number;
      judge(*test);
    }
  }
  fmt::print(
      "schemas {}  right {} ({:.2f} %)  declined {}  invalid accepted {}  valid rejected {}  "
      "instances {} of {}\n",
      tally.total, tally.right,
      100.0 * static_cast<double>(tally.right) / static_cast<double>(tally.total), tally.declined,
      tally.invalid_accepted, tally.valid_rejected, tally.num_instances_right, tally.num_instances);
  for (const auto& [reason, count] : tally.declined_by_reason) {
    fmt::print("{:6} {}\n", count, reason);
  }
  return 0;
}

}  // namespace
}  // namespace espalier::grammar

int main(int argc, char** argv) {
  const std::string command = argc > 2 ? argv[1] : "";
  if (command == "conformance") return espalier::grammar::conformance(argv[2]);
  if (command == "maskbench") return espalier::grammar::maskbench(argc, argv);
  if (command == "suite") return espalier::grammar::suite(argc, argv);
  std::fputs(
      "usage: grammar_bench maskbench VOCABULARY.tiktoken < cases.jsonl\n"
      "       grammar_bench suite FILE.json ...\n",
      stderr);
  return 2;
}
