// Conformance testing of grammars: texts with expected verdicts, schemas with valid and invalid
// instances, and the tally of both. `espalier grammar test` and `espalier grammar conformance`
// print the results. Functions are thread-safe.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "grammar/grammar.h"

namespace espalier::grammar {

// Returns a vocabulary of the 256 bytes, for testing texts where no model's tokens matter.
std::shared_ptr<const TokenTrie> byte_trie();

// One line of a file of cases:
//   {"kind": "regex", "grammar": "a+", "input": "aa", "accept": true}
// `kind` as parse_grammar_kind has it; `grammar` is text, or JSON where the grammar is JSON.
struct TextCase {
  GrammarSpec spec;
  std::string kind, input;
  bool accept = false;
};
Result<TextCase> parse_text_case(std::string_view line);

enum class TextVerdict : uint8_t { kAgrees, kWronglyAccepted, kWronglyRejected, kRefused };
struct TextOutcome {
  TextVerdict verdict = TextVerdict::kAgrees;
  Status refusal;  // kRefused: why the grammar was not compiled
};
TextOutcome check_text_case(const TextCase& test);

// A schema and its instances.
struct SchemaCase {
  struct Instance {
    std::string text;
    bool valid = false;
  };
  std::string name, schema;
  std::vector<Instance> instances;  // as written in the file, strings with the shortest escapes
  SchemaOptions options;
};
// {"name": ..., "schema": ..., "tests": [{"valid": true, "data": ...}, ...]}; and, where the schema
// refers to others, "documents": {ADDRESS: SCHEMA, ...}.
Result<SchemaCase> parse_schema_case(std::string_view line);
// A file of the official suite: a list of {"description", "schema", "tests"}. Names of cases begin
// with `file`.
Result<std::vector<SchemaCase>> parse_suite_file(std::string_view file, std::string_view text,
                                                 const SchemaOptions& options = {});
// The options under which the suite expects schemas to be read: formats annotate, references
// resolve to remotes/, and the draft is that of the folder, which is the suite's root or one of its
// tests/draft*.
Result<SchemaOptions> suite_options(const std::filesystem::path& folder);

// Returns the *.json files below `folder` as documents that references may resolve to, each under
// its $id (id), or under its path in the folder where it has none. kNotFound when the folder does
// not exist.
Result<std::vector<SchemaText>> documents_in(const std::filesystem::path& folder);

// A schema is right when each of its instances is judged right; else it is counted once, under its
// worst outcome.
enum class SchemaVerdict : uint8_t { kRight, kValidRejected, kInvalidAccepted, kDeclined };
struct SchemaOutcome {
  SchemaVerdict verdict = SchemaVerdict::kRight;
  int64_t num_instances = 0, num_instances_right = 0;
  std::string detail;  // the first instance that was judged wrong, or why the schema was declined
  std::string reason;  // kDeclined: the detail without its pointer, for counting
};
SchemaOutcome check_schema_case(const SchemaCase& test, const GrammarLimits& limits = {});

// Returns the spec for checking instances: any white space of RFC 8259. any_instance() also accepts
// properties in any order.
GrammarSpec conformance_spec(std::string schema, SchemaOptions options = {});
SchemaOptions any_instance();  // properties in any order, 1.0 for 1

// Returns the reason of a compiler error without its JSON pointer.
std::string reason_of(const Status& status);

struct SchemaTally {
  int64_t total = 0, right = 0, valid_rejected = 0, invalid_accepted = 0, declined = 0;
  int64_t num_instances = 0, num_instances_right = 0;
  std::map<std::string, int64_t> declined_by_reason;
  void add(const SchemaOutcome& outcome);
};

}  // namespace espalier::grammar
