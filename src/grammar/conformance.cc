#include "grammar/conformance.h"

#include <array>
#include <boost/json.hpp>
#include <utility>

namespace espalier::grammar {
namespace {

namespace json = boost::json;

constexpr size_t kDepthMax = 500;

std::string_view view(const json::string& text) { return {text.data(), text.size()}; }

Result<json::value> parse(std::string_view text) {
  json::parse_options options;
  options.max_depth = kDepthMax;
  json::error_code failed;
  json::value value = json::parse(text, failed, {}, options);
  if (failed) return fail(invalid_argument("not JSON: {}", failed.message()));
  return value;
}

// As other languages write it: a space after marks, 1.0 for what Boost writes as 1E0.
void append_text(const json::value& value, std::string& out) {
  if (value.is_double()) {
    out += fmt::format("{}", value.get_double());
  } else if (value.is_array()) {
    out += '[';
    for (const json::value& item : value.get_array()) {
      if (&item != value.get_array().data()) out += ", ";
      append_text(item, out);
    }
    out += ']';
  } else if (value.is_object()) {
    out += '{';
    bool first = true;
    for (const auto& member : value.get_object()) {
      if (!std::exchange(first, false)) out += ", ";
      out += json::serialize(json::string(member.key())) + ": ";
      append_text(member.value(), out);
    }
    out += '}';
  } else {
    out += json::serialize(value);
  }
}

Result<std::vector<SchemaCase::Instance>> read_instances(const json::value* tests) {
  if (tests == nullptr || !tests->is_array()) return fail(invalid_argument("tests is no list"));
  std::vector<SchemaCase::Instance> out;
  for (const json::value& test : tests->get_array()) {
    const json::object* entry = test.if_object();
    const json::value* data = entry != nullptr ? entry->if_contains("data") : nullptr;
    const json::value* valid = entry != nullptr ? entry->if_contains("valid") : nullptr;
    if (data == nullptr || valid == nullptr || !valid->is_bool())
      return fail(invalid_argument("a test needs data and valid (true or false)"));
    SchemaCase::Instance& instance = out.emplace_back();
    instance.valid = valid->get_bool();
    append_text(*data, instance.text);
  }
  return out;
}

Result<SchemaCase> read_case(const json::value& value, std::string_view name_key) {
  const json::object* entry = value.if_object();
  const json::value* schema = entry != nullptr ? entry->if_contains("schema") : nullptr;
  if (schema == nullptr)
    return fail(invalid_argument("an object with schema and tests is expected"));
  SchemaCase out;
  if (const json::value* name = entry->if_contains(name_key); name != nullptr && name->is_string())
    out.name = view(name->get_string());
  out.schema = json::serialize(*schema);
  ESP_ASSIGN_OR_RETURN(out.instances, read_instances(entry->if_contains("tests")));
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
  ESP_ASSIGN_OR_RETURN(const json::value value, parse(line));
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
  ESP_ASSIGN_OR_RETURN(const json::value value, parse(line));
  return read_case(value, "name");
}

Result<std::vector<SchemaCase>> parse_suite_file(std::string_view file, std::string_view text) {
  const auto value = parse(text);
  if (!value) return fail(value.error().with_context(file));
  if (!value->is_array()) return fail(invalid_argument("{}: a list of groups is expected", file));
  std::vector<SchemaCase> out;
  for (const json::value& group : value->get_array()) {
    auto one = read_case(group, "description");
    if (!one) return fail(one.error().with_context(file));
    one->name = fmt::format("{}: {}", file, one->name);
    out.push_back(std::move(*one));
  }
  return out;
}

GrammarSpec conformance_spec(std::string schema) {
  return {.kind = GrammarSpec::Kind::kJsonSchema,
          .source = std::move(schema),
          .choices = {},
          .whitespace = Whitespace::kAny};
}

SchemaOutcome check_schema_case(const SchemaCase& test) {
  SchemaOutcome out{
      .num_instances = static_cast<int64_t>(test.instances.size()), .detail = {}, .reason = {}};
  const auto grammar = compile_grammar(conformance_spec(test.schema), byte_trie());
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
