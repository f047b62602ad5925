#include "apps/grammar/source.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "apps/config.h"
#include "base/mapped_file.h"
#include "grammar/conformance.h"

namespace espalier::apps {

void add_whitespace_setting(SettingTable& table, std::string& whitespace) {
  table.choice("whitespace", whitespace, {"compact", "bounded", "any"},
               "between JSON's tokens: compact, none; bounded, a space or indented lines; any, as "
               "RFC 8259");
}

grammar::Whitespace whitespace_of(const std::string& name) {
  if (name == "compact") return grammar::Whitespace::kCompact;
  return name == "any" ? grammar::Whitespace::kAny : grammar::Whitespace::kBounded;
}

void add_documents_setting(SettingTable& table, std::filesystem::path& folder) {
  table.path("documents", folder,
             "folder of schemas that references may lead to: *.json, each by its $id, else by its "
             "path in there");
}

void add_grammar_settings(SettingTable& table, GrammarSource& source) {
  table.group("Grammar");
  table.text("kind", source.kind, "KIND",
             "regex, ebnf, json_schema, structural_tag, json (any) or choices");
  table.path("file", source.file, "read the grammar from it instead of the command line");
  add_whitespace_setting(table, source.whitespace);
  table.choice(
      "property-order", source.property_order, {"declared", "any"},
      "of a JSON Schema's objects: declared, as the schema lists them, others behind them");
  add_documents_setting(table, source.documents);
}

Result<grammar::GrammarSpec> read_grammar(const GrammarSource& source,
                                          const std::vector<std::string>& words) {
  using Kind = grammar::GrammarSpec::Kind;
  grammar::GrammarSpec spec;
  ESP_ASSIGN_OR_RETURN(spec.kind, grammar::parse_grammar_kind(source.kind));
  spec.whitespace = whitespace_of(source.whitespace);
  spec.json.any_order = source.property_order == "any";
  if (!source.documents.empty()) {
    ESP_ASSIGN_OR_RETURN(spec.json.documents, grammar::documents_in(source.documents));
  }
  if (spec.kind == Kind::kAnyJson) return spec;
  if (source.file.empty() == words.empty())
    return fail(invalid_argument("{}", words.empty()
                                           ? "give the grammar, or a file that holds it (--file)"
                                           : "give the grammar or --file, not both"));
  if (spec.kind == Kind::kChoices) {
    spec.choices = words;
    if (!source.file.empty()) {
      ESP_RETURN_IF_ERROR(for_each_line(source.file, [&](std::string_view line) {
        spec.choices.emplace_back(line);
        return Status();
      }));
    }
    return spec;
  }
  if (!source.file.empty()) {
    ESP_ASSIGN_OR_RETURN(spec.source, read_text_file(source.file));
    // A pattern's last line break is the editor's.
    if (spec.kind == Kind::kRegex && spec.source.ends_with('\n')) spec.source.pop_back();
  } else {
    if (words.size() > 1)
      return fail(
          invalid_argument("the grammar comes as {} words; put it in quotes", words.size()));
    spec.source = words[0];
  }
  return spec;
}

void add_vocab_setting(SettingTable& table, std::filesystem::path& path) {
  table.path("vocab", path, "model folder, tokenizer.json or .tiktoken file").default_text =
      "the model that ships";
}

Result<Vocabulary> load_vocabulary(const std::filesystem::path& path) {
  std::filesystem::path place = path;
  if (place.empty()) {
    ESP_ASSIGN_OR_RETURN(place, resolve_model_path({}));
  }
  Vocabulary out{.name = place.filename().string(), .tokenizer = nullptr, .trie = nullptr};
  ESP_ASSIGN_OR_RETURN(out.tokenizer, load_tokenizer(place));
  out.trie = std::make_shared<const grammar::TokenTrie>(out.tokenizer->vocab());
  return out;
}

Status for_each_line(const std::filesystem::path& file,
                     const std::function<Status(std::string_view line)>& visit) {
  std::error_code ignored;
  if (std::filesystem::is_directory(file, ignored))
    return invalid_argument("{} is a folder; name a file", file.string());
  errno = 0;
  std::ifstream in(file);
  if (!in)
    return error(StatusCode::kNotFound, "cannot open {}: {}", file.string(), std::strerror(errno));
  size_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty()) continue;
    if (Status status = visit(line); !status.ok())
      return status.with_context(fmt::format("{}:{}", file.string(), number));
  }
  return {};
}

std::optional<int> parse_plain_command(CommandLine& command, SettingTable& table,
                                       const std::vector<std::string>& args) {
  AppConfig unused;
  SettingTable known_elsewhere;
  add_engine_settings(known_elsewhere, unused);
  add_server_settings(known_elsewhere, unused);
  return parse_command_line(command, table, known_elsewhere, args);
}

}  // namespace espalier::apps
