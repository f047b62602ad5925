// espalier grammar test and conformance: files of cases, judged.
#include <algorithm>

#include "apps/commands.h"
#include "apps/grammar/source.h"
#include "base/mapped_file.h"
#include "grammar/conformance.h"
#include "server/json_writer.h"

namespace espalier::apps {
namespace {

namespace fs = std::filesystem;
using grammar::SchemaCase;
using grammar::SchemaTally;
using grammar::SchemaVerdict;
using grammar::TextVerdict;
using server::JsonWriter;

constexpr size_t kShownMax = 200;  // bytes of an input in a table

struct TextTally {
  struct First {
    size_t line = 0;
    std::string kind, what;
  };
  int64_t total = 0, agreements = 0, wrongly_accepted = 0, wrongly_rejected = 0, refused = 0;
  std::vector<First> first_wrong;    // of each kind of grammar and each way to be wrong
  std::vector<First> first_refused;  // of each kind of grammar and reason
};

void keep_first(std::vector<TextTally::First>& list, TextTally::First one) {
  const auto same = [&](const auto& f) {
    return f.kind == one.kind && f.what.substr(0, 18) == one.what.substr(0, 18);
  };
  if (std::none_of(list.begin(), list.end(), same)) list.push_back(std::move(one));
}

void add(const grammar::TextCase& test, size_t line, TextTally& tally) {
  const grammar::TextOutcome outcome = check_text_case(test);
  ++tally.total;
  switch (outcome.verdict) {
    case TextVerdict::kAgrees:
      ++tally.agreements;
      return;
    case TextVerdict::kWronglyAccepted:
      ++tally.wrongly_accepted;
      return keep_first(tally.first_wrong,
                        {line, test.kind, "wrongly accepted: " + test.input.substr(0, kShownMax)});
    case TextVerdict::kWronglyRejected:
      ++tally.wrongly_rejected;
      return keep_first(tally.first_wrong,
                        {line, test.kind, "wrongly rejected: " + test.input.substr(0, kShownMax)});
    case TextVerdict::kRefused:
      ++tally.refused;
      return keep_first(tally.first_refused, {line, test.kind, outcome.refusal.message()});
  }
}

void write_firsts(JsonWriter& w, const std::vector<TextTally::First>& list) {
  w.begin_array();
  for (const auto& first : list) {
    w.begin_object().member("line", first.line).member("kind", first.kind);
    w.member("what", first.what).end_object();
  }
  w.end_array();
}

void print(const TextTally& t, bool json) {
  if (json) {
    std::string out;
    JsonWriter w(out);
    w.begin_object().member("total", t.total).member("agreements", t.agreements);
    w.member("disagreements", t.wrongly_accepted + t.wrongly_rejected);
    w.member("refused", t.refused).member("wrongly_accepted", t.wrongly_accepted);
    w.member("wrongly_rejected", t.wrongly_rejected).key("first_disagreements");
    write_firsts(w, t.first_wrong);
    w.key("first_refused");
    write_firsts(w, t.first_refused);
    w.end_object();
    fmt::print("{}\n", out);
    return;
  }
  fmt::print(
      "cases          {:>8}\nagreements     {:>8}\ndisagreements  {:>8}  ({} wrongly "
      "accepted, {} wrongly rejected)\nrefused        {:>8}\n",
      t.total, t.agreements, t.wrongly_accepted + t.wrongly_rejected, t.wrongly_accepted,
      t.wrongly_rejected, t.refused);
  for (const auto* list : {&t.first_wrong, &t.first_refused})
    for (const auto& first : *list)
      fmt::print("  line {} ({}): {}\n", first.line, first.kind, first.what);
}

// The files of the suite below `folder`: of its draft 2020-12 where it is the suite's root, without
// the optional part.
std::vector<fs::path> suite_files(const fs::path& folder) {
  const fs::path newest = folder / "tests/draft2020-12";
  std::vector<fs::path> out;
  for (const auto& entry :
       fs::recursive_directory_iterator(fs::is_directory(newest) ? newest : folder)) {
    const fs::path& path = entry.path();
    bool optional = false;
    for (const fs::path& part : fs::relative(path, folder)) optional |= part == "optional";
    if (path.extension() == ".json" && !optional) out.push_back(path);
  }
  std::sort(out.begin(), out.end());
  return out;
}

class Judge {
 public:
  Judge(bool verbose, double compile_seconds_max) : verbose_(verbose) {
    limits_.compile_seconds_max = compile_seconds_max;
  }
  void add(const SchemaCase& test) {
    const grammar::SchemaOutcome outcome = check_schema_case(test, limits_);
    tally_.add(outcome);
    if (!verbose_ || outcome.verdict == SchemaVerdict::kRight) return;
    constexpr const char* kNames[] = {"right", "valid rejected", "invalid accepted", "declined"};
    fmt::print(stderr, "{}: {}: {}\n", test.name, kNames[static_cast<int>(outcome.verdict)],
               outcome.detail.substr(0, kShownMax));
  }
  const SchemaTally& tally() const { return tally_; }

 private:
  const bool verbose_;
  grammar::GrammarLimits limits_;
  SchemaTally tally_;
};

void print(const SchemaTally& t, bool json) {
  std::vector<std::pair<int64_t, std::string>> reasons;
  for (const auto& [reason, count] : t.declined_by_reason) reasons.emplace_back(count, reason);
  std::sort(reasons.rbegin(), reasons.rend());
  if (json) {
    std::string out;
    JsonWriter w(out);
    w.begin_object().member("total", t.total).member("right", t.right);
    w.member("valid_rejected", t.valid_rejected).member("invalid_accepted", t.invalid_accepted);
    w.member("declined", t.declined).member("instances", t.num_instances);
    w.member("instances_right", t.num_instances_right).key("declined_by_reason").begin_object();
    for (const auto& [count, reason] : reasons) w.member(reason, count);
    w.end_object().end_object();
    fmt::print("{}\n", out);
    return;
  }
  const auto row = [&](const char* name, int64_t count) {
    fmt::print(
        "{:<18}{:>8}  {:6.2f} %\n", name, count,
        100.0 * static_cast<double>(count) / static_cast<double>(std::max<int64_t>(t.total, 1)));
  };
  row("schemas", t.total);
  row("right", t.right);
  row("valid rejected", t.valid_rejected);
  row("invalid accepted", t.invalid_accepted);
  row("declined", t.declined);
  for (const auto& [count, reason] : reasons) fmt::print("{:>26}  {}\n", count, reason);
  fmt::print("{:<18}{:>8}  of {}\n", "instances right", t.num_instances_right, t.num_instances);
}

}  // namespace

int run_grammar_test(const std::vector<std::string>& args) {
  bool json = false;
  SettingTable table;
  table.group("Output");
  table.toggle("json", json, "print the result as JSON instead of a table");
  CommandLine command{
      "espalier grammar test",
      "Judges a file of cases, one a line: {\"kind\": ..., \"grammar\": ..., \"input\": ..., "
      "\"accept\": true|false}.",
      "Example:\n  espalier grammar test cases.jsonl --json",
      "FILE",
      {}};
  if (const auto exit_code = parse_plain_command(command, table, args)) return *exit_code;
  if (command.words.size() != 1)
    return report(invalid_argument("give one file of cases"), kExitUsage);
  TextTally tally;
  const Status read = for_each_line(command.words[0], [&](std::string_view line) -> Status {
    ESP_ASSIGN_OR_RETURN(const grammar::TextCase test, grammar::parse_text_case(line));
    add(test, static_cast<size_t>(tally.total) + 1, tally);
    return {};
  });
  if (!read.ok()) return report(read, kExitFailure);
  print(tally, json);
  return kExitOk;
}

int run_grammar_conformance(const std::vector<std::string>& args) {
  fs::path schemas, suite, documents;
  bool json = false, verbose = false;
  double compile_seconds = grammar::GrammarLimits().compile_seconds_max;
  SettingTable table;
  table.group("Cases");
  table.path(
      "schemas", schemas,
      "file of schemas, one a line: {\"name\", \"schema\", \"tests\": [{\"valid\", \"data\"}]}");
  table.path("suite", suite,
             "folder of the official JSON-Schema-Test-Suite, or of files of it; references lead to "
             "its remotes/");
  add_documents_setting(table, documents);
  table.number("compile-seconds", compile_seconds, 0.001, 1e6,
               "that compiling one schema may take");
  table.group("Output");
  table.toggle("json", json, "print the result as JSON instead of a table");
  table.toggle("verbose", verbose, "a line on standard error for each schema that is not right");
  CommandLine command{"espalier grammar conformance",
                      "Holds the JSON Schema compiler to schemas with valid and invalid instances.",
                      "Example:\n  espalier grammar conformance --schemas cases.jsonl",
                      "",
                      {}};
  if (const auto exit_code = parse_plain_command(command, table, args)) return *exit_code;
  if (schemas.empty() == suite.empty())
    return report(invalid_argument("give --schemas FILE or --suite DIR"), kExitUsage);
  Judge judge(verbose, compile_seconds);
  Status read;
  std::vector<grammar::SchemaText> supplied;
  if (!documents.empty()) {
    auto found = grammar::documents_in(documents);
    if (!found) return report(found.error(), kExitFailure);
    supplied = std::move(*found);
  }
  const auto add = [&](SchemaCase test) {
    auto& all = test.options.documents;
    all.insert(all.end(), supplied.begin(), supplied.end());
    judge.add(test);
  };
  if (!schemas.empty()) {
    read = for_each_line(schemas, [&](std::string_view line) -> Status {
      ESP_ASSIGN_OR_RETURN(SchemaCase test, grammar::parse_schema_case(line));
      add(std::move(test));
      return {};
    });
  } else if (!fs::is_directory(suite)) {
    read = error(StatusCode::kNotFound, "{}: there is no such folder", suite.string());
  } else {
    const auto options = grammar::suite_options(suite);
    if (!options) return report(options.error(), kExitFailure);
    for (const fs::path& file : suite_files(suite)) {
      const auto text = read_text_file(file);
      if (!text) return report(text.error(), kExitFailure);
      const auto cases = grammar::parse_suite_file(file.filename().string(), *text, *options);
      if (!cases) return report(cases.error(), kExitFailure);
      for (const SchemaCase& test : *cases) add(test);
    }
  }
  if (!read.ok()) return report(read, kExitFailure);
  print(judge.tally(), json);
  return kExitOk;
}

}  // namespace espalier::apps
