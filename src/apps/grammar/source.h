// What the grammar commands share: a grammar named on the command line, a vocabulary, files of
// lines. Used by one thread; tries and documents may be shared afterwards.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/command_line.h"
#include "apps/settings.h"
#include "grammar/grammar.h"
#include "text/tokenizer/tokenizer.h"

namespace espalier::apps {

// A grammar as words, or as a file. With kind choices each word (or line of the file) is a choice.
struct GrammarSource {
  std::string kind = "json_schema";
  std::string whitespace = "bounded";
  std::string property_order = "declared";
  std::filesystem::path file, documents;
};
void add_grammar_settings(SettingTable& table, GrammarSource& source);
Result<grammar::GrammarSpec> read_grammar(const GrammarSource& source,
                                          const std::vector<std::string>& words);

// A folder of schemas that references may lead to: grammar::documents_in().
void add_documents_setting(SettingTable& table, std::filesystem::path& folder);

// "compact", "bounded" or "any".
void add_whitespace_setting(SettingTable& table, std::string& whitespace);
grammar::Whitespace whitespace_of(const std::string& name);

// The tokenizer at `path`: a model folder, a tokenizer.json or a .tiktoken file; empty: that of the
// model that ships. And what its masks are made from.
struct Vocabulary {
  std::string name;
  std::unique_ptr<Tokenizer> tokenizer;
  std::shared_ptr<const grammar::TokenTrie> trie;  // shared by all grammars
};
Result<Vocabulary> load_vocabulary(const std::filesystem::path& path);
void add_vocab_setting(SettingTable& table, std::filesystem::path& path);

// Calls `visit` for each line that is not empty; a failure names the file and line number.
Status for_each_line(const std::filesystem::path& file,
                     const std::function<Status(std::string_view line)>& visit);

// Parses the arguments of a command that starts no engine.
std::optional<int> parse_plain_command(CommandLine& command, SettingTable& table,
                                       const std::vector<std::string>& args);

}  // namespace espalier::apps
