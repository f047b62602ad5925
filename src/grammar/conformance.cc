#include "grammar/conformance.h"

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <utility>

#include "base/mapped_file.h"
#include "grammar/schema/json_text.h"

namespace espalier::grammar {
namespace {

namespace json = boost::json;

std::string_view view(const json::string& text) { return {text.data(), text.size()}; }

// Slices a well-formed JSON text into the raw texts of its parts. Instances are matched as they
// were written, so numbers and the order of properties stay unchanged.
class RawJson {
 public:
  explicit RawJson(std::string_view text) : rest_(text) { space(); }

  // Removes and returns the value at the front.
  std::string_view value() {
    const char* begin = rest_.data();
    skip_value();
    const auto size = static_cast<size_t>(rest_.data() - begin);
    return {begin, size};
  }

  // Visits the members of the object, or the items of the array with empty keys, at the front.
  template <typename Fn>
  void each(Fn visit) {
    const bool object = rest_.starts_with("{");
    rest_.remove_prefix(1);
    space();
    while (!rest_.starts_with("}") && !rest_.starts_with("]")) {
      std::string_view key;
      if (object) {
        key = value();
        key = key.substr(1, key.size() - 2);
        space();
        rest_.remove_prefix(1);  // the colon
        space();
      }
      visit(key, value());
      space();
      if (rest_.starts_with(",")) rest_.remove_prefix(1);
      space();
    }
    rest_.remove_prefix(1);
  }

 private:
  void space() { rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\r\n"), rest_.size())); }
  void skip_value() {
    int depth = 0;
    do {
      const char c = rest_[0];
      if (c == '"') {
        skip_string();
      } else if (c == '{' || c == '[') {
        ++depth;
        rest_.remove_prefix(1);
      } else if (c == '}' || c == ']') {
        --depth;
        rest_.remove_prefix(1);
      } else if (depth > 0) {
        rest_.remove_prefix(1);
      } else {
        rest_.remove_prefix(std::min(rest_.find_first_of(",}] \t\r\n"), rest_.size()));
      }
    } while (depth > 0);
  }
  void skip_string() {
    size_t i = 1;
    while (rest_[i] != '"') i += rest_[i] == '\\' ? 2 : 1;
    rest_.remove_prefix(i + 1);
  }

  std::string_view rest_;
};

// Returns the text as other languages' serialisers write it: strings in UTF-8 with the shortest
// escapes, the rest unchanged.
std::string normalized_text(std::string_view raw) {
  std::string out;
  while (!raw.empty()) {
    if (raw[0] != '"') {
      out += raw[0];
      raw.remove_prefix(1);
      continue;
    }
    const std::string_view token = RawJson(raw).value();
    boost::system::error_code failed;
    const json::value text = json::parse(token, failed);
    out += failed ? std::string(token) : json::serialize(text);
    raw.remove_prefix(token.size());
  }
  return out;
}

// Reads one case from JSON that has been validated.
Result<SchemaCase> read_case(std::string_view text, std::string_view name_key) {
  if (!text.starts_with("{"))
    return fail(invalid_argument("an object with schema and tests is expected"));
  SchemaCase out;
  std::string_view tests, documents;
  RawJson(text).each([&](std::string_view key, std::string_view value) {
    if (key == name_key && value.size() > 1) out.name = value.substr(1, value.size() - 2);
    if (key == "schema") out.schema = value;
    if (key == "tests") tests = value;
    if (key == "documents") documents = value;
  });
  if (out.schema.empty())
    return fail(invalid_argument("an object with schema and tests is expected"));
  if (!documents.empty() && !documents.starts_with("{"))
    return fail(invalid_argument("documents is no object of schemas by their addresses"));
  if (!documents.empty()) {
    RawJson(documents).each([&](std::string_view address, std::string_view schema) {
      const json::value key = json::parse(fmt::format("\"{}\"", address));
      out.options.documents.push_back({std::string(key.get_string()), std::string(schema)});
    });
  }
  if (!tests.starts_with("[")) return fail(invalid_argument("tests is no list"));
  bool complete = true;
  RawJson(tests).each([&](std::string_view, std::string_view test) {
    std::string_view data, valid;
    if (test.starts_with("{")) {
      RawJson(test).each([&](std::string_view key, std::string_view value) {
        if (key == "data") data = value;
        if (key == "valid") valid = value;
      });
    }
    complete = complete && !data.empty() && (valid == "true" || valid == "false");
    out.instances.push_back({normalized_text(data), valid == "true"});
  });
  if (!complete) return fail(invalid_argument("a test needs data and valid (true or false)"));
  return out;
}

bool matches_nothing(const Status& status) {
  return status.message().starts_with("the grammar matches nothing");
}

}  // namespace

std::shared_ptr<const TokenTrie> byte_trie() {
  static const std::shared_ptr<const TokenTrie> trie = [] {
    std::array<char, 256> bytes{};
    std::array<std::string_view, 256> tokens{};
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<char>(i);
      tokens[i] = {&bytes[i], 1};
    }
    VocabView vocab;
    vocab.token_bytes = tokens;
    return std::make_shared<const TokenTrie>(vocab);
  }();
  return trie;
}

Result<TextCase> parse_text_case(std::string_view line) {
  ESP_ASSIGN_OR_RETURN(const json::value value, parse_json_text(line, "the line"));
  const json::object* entry = value.if_object();
  if (entry == nullptr) return fail(invalid_argument("a JSON object is expected"));
  const auto text = [&](const char* name) -> Result<std::string> {
    const json::value* member = entry->if_contains(name);
    if (member == nullptr || !member->is_string())
      return fail(invalid_argument("{} is missing, or no string", name));
    return std::string(view(member->get_string()));
  };
  TextCase out;
  ESP_ASSIGN_OR_RETURN(out.kind, text("kind"));
  ESP_ASSIGN_OR_RETURN(out.spec.kind, parse_grammar_kind(out.kind));
  ESP_ASSIGN_OR_RETURN(out.input, text("input"));
  const json::value* accept = entry->if_contains("accept");
  if (accept == nullptr || !accept->is_bool())
    return fail(invalid_argument("accept is missing, or neither true nor false"));
  out.accept = accept->get_bool();
  out.spec.whitespace = Whitespace::kAny;
  const json::value* grammar = entry->if_contains("grammar");
  if (grammar == nullptr) {
    if (out.spec.kind != GrammarSpec::Kind::kAnyJson)
      return fail(invalid_argument("grammar is missing"));
  } else if (out.spec.kind == GrammarSpec::Kind::kChoices && grammar->is_array()) {
    for (const json::value& choice : grammar->get_array()) {
      if (!choice.is_string()) return fail(invalid_argument("a choice is no string"));
      out.spec.choices.emplace_back(view(choice.get_string()));
    }
  } else {
    out.spec.source =
        grammar->is_string() ? std::string(view(grammar->get_string())) : json::serialize(*grammar);
  }
  return out;
}

TextOutcome check_text_case(const TextCase& test) {
  const auto grammar = compile_grammar(test.spec, byte_trie());
  bool accepted = false;
  if (grammar) {
    Matcher matcher(*grammar);
    accepted = matcher.accept_bytes(test.input) && matcher.can_end();
  } else if (!matches_nothing(grammar.error())) {
    return {.verdict = TextVerdict::kRefused, .refusal = grammar.error()};
  }
  if (accepted == test.accept) return {};
  return {.verdict = accepted ? TextVerdict::kWronglyAccepted : TextVerdict::kWronglyRejected,
          .refusal = {}};
}

Result<SchemaCase> parse_schema_case(std::string_view line) {
  ESP_ASSIGN_OR_RETURN([[maybe_unused]] const json::value value, parse_json_text(line, "the line"));
  ESP_ASSIGN_OR_RETURN(SchemaCase out, read_case(RawJson(line).value(), "name"));
  std::vector<SchemaText> documents = std::move(out.options.documents);
  out.options = any_instance();
  out.options.documents = std::move(documents);
  return out;
}

Result<std::vector<SchemaCase>> parse_suite_file(std::string_view file, std::string_view text,
                                                 const SchemaOptions& options) {
  const auto value = parse_json_text(text, "the file");
  if (!value) return fail(value.error().with_context(file));
  if (!value->is_array()) return fail(invalid_argument("{}: a list of groups is expected", file));
  std::vector<SchemaCase> out;
  Status failed;
  RawJson(text).each([&](std::string_view, std::string_view group) {
    auto one = read_case(group, "description");
    if (!one) {
      failed = one.error().with_context(file);
      return;
    }
    one->name = fmt::format("{}: {}", file, one->name);
    one->options = options;
    out.push_back(std::move(*one));
  });
  if (!failed.ok()) return fail(std::move(failed));
  return out;
}

Result<SchemaOptions> suite_options(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  SchemaOptions options = any_instance();
  options.formats_annotate = true;
  const bool root = fs::is_directory(folder / "tests");
  options.draft = root ? "draft2020-12" : fs::absolute(folder).lexically_normal().string();
  const fs::path remotes = root ? folder / "remotes" : folder / ".." / ".." / "remotes";
  std::error_code absent;
  for (const auto& entry : fs::recursive_directory_iterator(remotes, absent)) {
    if (entry.path().extension() != ".json") continue;
    ESP_ASSIGN_OR_RETURN(std::string text, read_text_file(entry.path()));
    const std::string name = fs::relative(entry.path(), remotes).generic_string();
    options.documents.push_back({"http://localhost:1234/" + name, std::move(text)});
  }
  std::ranges::sort(options.documents, {}, &SchemaText::uri);
  return options;
}

Result<std::vector<SchemaText>> documents_in(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  if (!fs::is_directory(folder))
    return fail(error(StatusCode::kNotFound, "{}: there is no such folder", folder.string()));
  std::vector<SchemaText> out;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".json") continue;
    ESP_ASSIGN_OR_RETURN(std::string text, read_text_file(entry.path()));
    std::string address = fs::relative(entry.path(), folder).generic_string();
    auto schema = parse_json_text(text, "the document");
    if (!schema) return fail(schema.error().with_context(entry.path().string()));
    for (const char* name : {"$id", "id"}) {
      const json::value* id =
          schema->is_object() ? schema->get_object().if_contains(name) : nullptr;
      if (id != nullptr && id->is_string()) {
        address = view(id->get_string());
        break;
      }
    }
    out.push_back({std::move(address), std::move(text)});
  }
  std::ranges::sort(out, {}, &SchemaText::uri);
  return out;
}

SchemaOptions any_instance() { return {.any_order = true, .whole_fractions = true}; }

GrammarSpec conformance_spec(std::string schema, SchemaOptions options) {
  return {.kind = GrammarSpec::Kind::kJsonSchema,
          .source = std::move(schema),
          .choices = {},
          .whitespace = Whitespace::kAny,
          .json = std::move(options)};
}

SchemaOutcome check_schema_case(const SchemaCase& test, const GrammarLimits& limits) {
  SchemaOutcome out{
      .num_instances = static_cast<int64_t>(test.instances.size()), .detail = {}, .reason = {}};
  const auto grammar =
      compile_grammar(conformance_spec(test.schema, test.options), byte_trie(), limits);
  if (!grammar && !matches_nothing(grammar.error())) {
    out.verdict = SchemaVerdict::kDeclined;
    out.detail = grammar.error().message();
    out.reason = reason_of(grammar.error());
    return out;
  }
  for (const SchemaCase::Instance& instance : test.instances) {
    bool accepted = false;
    if (grammar) {
      Matcher matcher(*grammar);
      accepted = matcher.accept_bytes(instance.text) && matcher.can_end();
    }
    if (accepted == instance.valid) {
      ++out.num_instances_right;
      continue;
    }
    const SchemaVerdict wrong =
        accepted ? SchemaVerdict::kInvalidAccepted : SchemaVerdict::kValidRejected;
    if (wrong > out.verdict) {
      out.verdict = wrong;
      out.detail = instance.text;
    }
  }
  return out;
}

std::string reason_of(const Status& status) {
  std::string_view message = status.message();
  if (message.starts_with("#") || message.starts_with("not of") || message.starts_with("(derived"))
    if (const size_t colon = message.find(": "); colon != std::string_view::npos)
      message.remove_prefix(colon + 2);
  return std::string(message.substr(0, 80));
}

void SchemaTally::add(const SchemaOutcome& outcome) {
  ++total;
  num_instances += outcome.num_instances;
  num_instances_right += outcome.num_instances_right;
  switch (outcome.verdict) {
    case SchemaVerdict::kRight:
      ++right;
      break;
    case SchemaVerdict::kValidRejected:
      ++valid_rejected;
      break;
    case SchemaVerdict::kInvalidAccepted:
      ++invalid_accepted;
      break;
    case SchemaVerdict::kDeclined:
      ++declined;
      ++declined_by_reason[outcome.reason];
      break;
  }
}

}  // namespace espalier::grammar
