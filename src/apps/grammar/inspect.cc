// espalier grammar check, mask and explain: what a grammar compiles to, what may come next in it,
// and what is refused and why.
#include <algorithm>

#include "apps/commands.h"
#include "apps/grammar/source.h"
#include "base/clock.h"
#include "grammar/conformance.h"
#include "grammar/drawing.h"
#include "server/json_writer.h"

namespace espalier::apps {
namespace {

using grammar::CompiledGrammar;
using grammar::Matcher;
using server::JsonWriter;

constexpr size_t kForcedMax = 256;

struct Compiled {
  std::shared_ptr<CompiledGrammar> grammar;
  double compile_ms = 0;
};

Result<Compiled> compile(const grammar::GrammarSpec& spec,
                         const std::shared_ptr<const grammar::TokenTrie>& trie) {
  const SteadyClock clock;
  const TimePoint start = clock.now();
  ESP_ASSIGN_OR_RETURN(auto made, grammar::compile_grammar(spec, trie));
  return Compiled{std::move(made), to_seconds(clock.now() - start) * 1e3};
}

int refuse(const Status& status, const std::string& kind, bool json) {
  if (!json) return report(status, kExitFailure);
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("accepted", false).member("kind", kind);
  w.member("code", status_code_name(status.code())).member("error", status.message()).end_object();
  fmt::print("{}\n", out);
  return kExitFailure;
}

void write_size(JsonWriter& w, const Compiled& made) {
  const grammar::GrammarSize size = made.grammar->size();
  w.member("compile_ms", made.compile_ms).member("rules", size.num_rules);
  w.member("states", size.num_nodes).member("edges", size.num_byte_edges);
  w.member("calls", size.num_call_edges).member("byte_classes", size.num_byte_classes);
}

void print_size(const Compiled& made) {
  const grammar::GrammarSize size = made.grammar->size();
  fmt::print("compiled in {:.2f} ms: {} rules, {} states, {} edges, {} calls, {} byte classes\n",
             made.compile_ms, size.num_rules, size.num_nodes, size.num_byte_edges,
             size.num_call_edges, size.num_byte_classes);
}

// As a user can read it: quotes, escapes for what cannot be printed.
std::string in_quotes(std::string_view bytes) {
  std::string out = "\"";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      (out += '\\') += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out + "\"";
}

}  // namespace

int run_grammar_check(const std::vector<std::string>& args) {
  GrammarSource source;
  bool json = false;
  SettingTable table;
  add_grammar_settings(table, source);
  table.group("Output");
  table.toggle("json", json, "print the result as JSON");
  CommandLine command{"espalier grammar check",
                      "Says whether a grammar compiles, and what is refused and why.",
                      "Example:\n  espalier grammar check '{\"type\": \"integer\"}'",
                      "GRAMMAR",
                      {}};
  if (const auto exit_code = parse_plain_command(command, table, args)) return *exit_code;
  const auto spec = read_grammar(source, command.words);
  if (!spec) return report(spec.error(), kExitUsage);
  const auto made = compile(*spec, grammar::byte_trie());
  if (!made) return refuse(made.error(), source.kind, json);
  if (!json) {
    print_size(*made);
    return kExitOk;
  }
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("accepted", true).member("kind", source.kind);
  write_size(w, *made);
  w.end_object();
  fmt::print("{}\n", out);
  return kExitOk;
}

int run_grammar_mask(const std::vector<std::string>& args) {
  GrammarSource source;
  std::filesystem::path vocab_path;
  std::string after;
  int32_t limit = 40;
  bool json = false;
  SettingTable table;
  add_grammar_settings(table, source);
  table.group("Place");
  table.text("after", after, "TEXT", "what has been generated so far");
  add_vocab_setting(table, vocab_path);
  table.group("Output");
  table.integer("limit", limit, 0, 1000000, "tokens that are listed");
  table.toggle("json", json, "print the result as JSON");
  CommandLine command{"espalier grammar mask",
                      "Lists the tokens that may come next.",
                      "Example:\n  espalier grammar mask --kind regex '(yes|no)!' --after ye",
                      "GRAMMAR",
                      {}};
  if (const auto exit_code = parse_plain_command(command, table, args)) return *exit_code;
  const auto spec = read_grammar(source, command.words);
  if (!spec) return report(spec.error(), kExitUsage);
  const auto vocab = load_vocabulary(vocab_path);
  if (!vocab) return report(vocab.error(), kExitFailure);
  const auto made = compile(*spec, vocab->trie);
  if (!made) return refuse(made.error(), source.kind, json);

  Matcher matcher(made->grammar);
  for (size_t i = 0; i < after.size(); ++i)
    if (!matcher.accept_bytes(std::string_view(after).substr(i, 1)))
      return report(invalid_argument("--after is not of the grammar from byte {} on: {}", i,
                                     in_quotes(after.substr(i))),
                    kExitFailure);
  std::vector<uint32_t> words(static_cast<size_t>(matcher.words_per_mask()));
  matcher.fill_mask(words);
  std::vector<TokenId> allowed;
  for (TokenId id = 0; id < vocab->trie->vocab_size(); ++id)
    if (words[static_cast<size_t>(id) / 32] >> (id % 32) & 1) allowed.push_back(id);
  const std::string forced = matcher.forced_bytes(kForcedMax);
  const size_t shown = std::min(allowed.size(), static_cast<size_t>(limit));
  if (json) {
    std::string out;
    JsonWriter w(out);
    w.begin_object().member("num_allowed", allowed.size());
    w.member("vocab_size", vocab->trie->vocab_size()).member("can_end", matcher.can_end());
    w.member("forced", forced).key("tokens").begin_array();
    for (size_t i = 0; i < shown; ++i) {
      w.begin_object().member("id", allowed[i]);
      w.member("token", vocab->tokenizer->id_to_token(allowed[i])).end_object();
    }
    w.end_array().end_object();
    fmt::print("{}\n", out);
    return kExitOk;
  }
  fmt::print("{} of {} tokens may come next; the text {} end here\n", allowed.size(),
             vocab->trie->vocab_size(), matcher.can_end() ? "may" : "may not");
  if (!forced.empty()) fmt::print("forced: {}\n", in_quotes(forced));
  for (size_t i = 0; i < shown; ++i) {
    const bool ends = vocab->trie->is_eos(allowed[i]);
    fmt::print("{:>8}  {}\n", allowed[i],
               ends ? "(the end)" : in_quotes(vocab->trie->bytes(allowed[i])));
  }
  if (shown < allowed.size()) fmt::print("... {} more (--limit)\n", allowed.size() - shown);
  return kExitOk;
}

int run_grammar_explain(const std::vector<std::string>& args) {
  GrammarSource source;
  std::filesystem::path svg_file;
  int32_t nodes_max = 400;
  SettingTable table;
  add_grammar_settings(table, source);
  table.group("Output");
  table.result_file("svg", svg_file, "draw the automata into this file");
  table.integer("max-states", nodes_max, 1, 100000, "that are drawn of each rule");
  CommandLine command{"espalier grammar explain",
                      "Shows what a grammar compiles to.",
                      "Example:\n  espalier grammar explain --kind regex '(yes|no)!' --svg out.svg",
                      "GRAMMAR",
                      {}};
  if (const auto exit_code = parse_plain_command(command, table, args)) return *exit_code;
  const auto spec = read_grammar(source, command.words);
  if (!spec) return report(spec.error(), kExitUsage);
  const auto made = compile(*spec, grammar::byte_trie());
  if (!made) return report(made.error(), kExitFailure);
  print_size(*made);
  Matcher matcher(made->grammar);
  const std::string forced = matcher.forced_bytes(kForcedMax);
  fmt::print("every text begins with {}\n",
             forced.empty() ? "(nothing certain)" : in_quotes(forced));
  const grammar::Network& network = made->grammar->whole_network();
  for (size_t rule = 0; rule < network.starts.size(); ++rule)
    fmt::print("rule {}{}\n", network.rule_names[rule],
               network.nullable[rule] != 0 ? " (may be empty)" : "");
  if (svg_file.empty()) return kExitOk;
  const std::string drawing = grammar::draw_svg(network, static_cast<size_t>(nodes_max));
  if (Status status = write_file(svg_file, drawing); !status.ok())
    return report(status, kExitFailure);
  fmt::print("drawn to {}\n", svg_file.string());
  return kExitOk;
}

}  // namespace espalier::apps
