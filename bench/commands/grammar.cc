// espalier_bench grammar: what compiling schemas and filling masks costs, on one thread, each call
// timed by the thread's processor time.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "apps/bench/report.h"
#include "apps/grammar/source.h"
#include "base/rng.h"
#include "bench/commands/commands.h"
#include "bench/commands/grammar_batch.h"
#include "bench/commands/grammar_cliffs.h"
#include "bench/commands/measure.h"
#include "engine/constrained/jump_forward.h"
#include "grammar/conformance.h"
#include "server/json_writer.h"

namespace espalier::bench {
using namespace apps;
namespace {

using grammar::CompiledGrammar;
using grammar::Matcher;
using grammar::SchemaCase;
using server::JsonWriter;

constexpr size_t kSlowestShown = 3;

// Calls in a fixed order, measured several times. The least time of each call counts.
class LeastOf {
 public:
  void begin_replay() { next_ = 0; }
  void add(double us) {
    if (next_ == times_.size()) {
      times_.push_back(us);
    } else {
      times_[next_] = std::min(times_[next_], us);
    }
    ++next_;
  }
  const std::vector<double>& times() const { return times_; }

 private:
  std::vector<double> times_;
  size_t next_ = 0;
};

struct Percentiles {
  double p50 = 0, p99 = 0, p999 = 0, max = 0;
};
Percentiles percentiles(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto at = [&](double q) {
    return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
  };
  return {at(0.5), at(0.99), at(0.999), values.back()};
}

// Jump-forward along texts. `tokens` counts all tokens, and among them the forced ones; `strange`
// counts forced tokens that differ from the tokenisation of the whole text. `forced_bytes` is an
// upper bound: tokens whose bytes are all forced, even where a longer token could end in other
// bytes.
struct Jumps {
  int64_t texts = 0, tokens = 0, forced = 0, forced_bytes = 0, strange = 0;
  std::vector<double> us;                              // of each search for forced tokens
  double gain() const { return per_forward(forced); }  // tokens for each forward
  double gain_max() const { return per_forward(forced_bytes); }

 private:
  double per_forward(int64_t saved) const {
    return static_cast<double>(tokens) / static_cast<double>(std::max<int64_t>(tokens - saved, 1));
  }
};

struct Totals {
  Jumps jumps, jumps_in_calls;  // function calls: schemas named BFCL_...

  int64_t schemas = 0, declined = 0, instances = 0, instances_rejected = 0;
  std::vector<double> first_mask_us, cold_us, ahead_us, masks_ahead_us, warm_us, random_us;
  std::vector<double> build_ahead_us;                                         // of a whole grammar
  std::vector<std::pair<double, std::string>> slowest_compile, slowest_mask;  // with names
};

void keep_slowest(std::vector<std::pair<double, std::string>>& list, double us,
                  const std::string& name) {
  list.emplace_back(us, name);
  std::sort(list.rbegin(), list.rend());
  if (list.size() > kSlowestShown) list.pop_back();
}

class GrammarBench {
 public:
  GrammarBench(const Vocabulary& vocab, grammar::Whitespace whitespace, int replays, uint64_t seed)
      : vocab_(vocab),
        whitespace_(whitespace),
        replays_(replays),
        rng_(seed),
        tokens_(*vocab.tokenizer),
        jump_(*vocab.tokenizer, tokens_) {
    words_.resize(static_cast<size_t>(vocab.trie->words_per_mask()));
    for (TokenId id = 0; id < vocab.trie->vocab_size(); ++id) {
      const std::string_view bytes = vocab.trie->bytes(id);
      if (bytes.empty()) continue;
      ids_.emplace(bytes, id);
      longest_ = std::max(longest_, bytes.size());
    }
  }

  void run(const SchemaCase& test) {
    ++totals_.schemas;
    std::vector<std::vector<TokenId>> canonical, random;
    for (const auto& instance : test.instances) {
      if (!instance.valid) continue;
      const std::string text =
          whitespace_ == grammar::Whitespace::kCompact ? compact(instance.text) : instance.text;
      canonical.push_back(
          vocab_.tokenizer->encode(text, {.add_special_tokens = false, .parse_special = false}));
      random.push_back(random_tokens(text));
      ++totals_.instances;
    }
    double first_us = std::numeric_limits<double>::max();
    double build_ahead_us = std::numeric_limits<double>::max();
    LeastOf cold, ahead, masks_ahead, warm, random_times;
    for (int replay = 0; replay < replays_; ++replay) {
      const double start = thread_cpu_us();
      auto made = compile(test);
      if (!made) {
        ++totals_.declined;
        return;
      }
      Matcher(*made).fill_mask(words_);
      first_us = std::min(first_us, thread_cpu_us() - start);
      // Each tokenisation cold once: the second one finds a fresh grammar, too.
      follow(*made, canonical, cold, replay == 0);
      follow(*made, canonical, warm, false);
      made = compile(test);
      if (made) {
        // As behind the engine's compiler, which builds rules before a text reaches them.
        const double ahead_start = thread_cpu_us();
        (*made)->build_ahead([] { return false; });
        build_ahead_us = std::min(build_ahead_us, thread_cpu_us() - ahead_start);
        follow(*made, canonical, ahead, false);
      }
      made = compile(test);
      if (made) {
        (*made)->build_ahead([] { return false; });
        (*made)->make_masks_ahead([] { return false; });
        follow(*made, canonical, masks_ahead, false);
      }
      made = compile(test);
      if (made) follow(*made, random, random_times, false);
      if (made && replay == 0)
        for (const auto& ids : canonical) jump_along(*made, ids, test.name.starts_with("BFCL"));
    }
    totals_.first_mask_us.push_back(first_us);
    keep_slowest(totals_.slowest_compile, first_us, test.name);
    if (!cold.times().empty())
      keep_slowest(totals_.slowest_mask,
                   *std::max_element(cold.times().begin(), cold.times().end()), test.name);
    append(cold, totals_.cold_us);
    append(ahead, totals_.ahead_us);
    append(masks_ahead, totals_.masks_ahead_us);
    totals_.build_ahead_us.push_back(build_ahead_us);
    append(warm, totals_.warm_us);
    append(random_times, totals_.random_us);
  }

  const Totals& totals() const { return totals_; }

 private:
  Result<std::shared_ptr<CompiledGrammar>> compile(const SchemaCase& test) const {
    grammar::GrammarSpec spec = grammar::conformance_spec(test.schema);
    spec.whitespace = whitespace_;
    return grammar::compile_grammar(spec, vocab_.trie);
  }

  // Each call: the mask, and the commit of the token that comes.
  void follow(const std::shared_ptr<CompiledGrammar>& grammar,
              const std::vector<std::vector<TokenId>>& texts, LeastOf& times, bool count) {
    times.begin_replay();
    for (const auto& ids : texts) {
      Matcher matcher(grammar);
      bool accepted = true;
      for (const TokenId id : ids) {
        const double start = thread_cpu_us();
        matcher.fill_mask(words_);
        accepted = matcher.accept_token(id);
        times.add(thread_cpu_us() - start);
        if (!accepted) break;
      }
      if (count && !(accepted && matcher.can_end())) ++totals_.instances_rejected;
    }
  }

  // JSON without the spaces between its tokens.
  static std::string compact(std::string_view text) {
    std::string out;
    bool in_string = false, escaped = false;
    for (const char c : text) {
      if (in_string) {
        if (c == '"' && !escaped) in_string = false;
        escaped = c == '\\' && !escaped;
      } else if (c == ' ') {
        continue;
      } else if (c == '"') {
        in_string = true;
      }
      out += c;
    }
    return out;
  }

  // Advances along a text as an engine does: it takes every forced token, from the prompt on.
  void jump_along(const std::shared_ptr<CompiledGrammar>& grammar, const std::vector<TokenId>& ids,
                  bool is_call) {
    if (Matcher whole(grammar);
        !std::ranges::all_of(ids, [&](TokenId id) { return whole.accept_token(id); }))
      return;  // not of the grammar (properties in another order): it says nothing of jumps
    Matcher matcher(grammar);
    Jumps jumps{.texts = 1, .tokens = static_cast<int64_t>(ids.size())};
    std::vector<TokenId> forced;
    for (size_t i = 0; i < ids.size(); ++i) {
      forced.clear();
      const double start = thread_cpu_us();
      jump_.append_forced(matcher, std::span(ids).first(i), forced);
      jumps.us.push_back(thread_cpu_us() - start);
      const size_t num_bytes = matcher.forced_bytes(JumpForward::kForcedBytesMax).size();
      for (size_t reach = 0, next = i; next < ids.size(); ++next) {
        reach += vocab_.trie->bytes(ids[next]).size();
        if (reach > num_bytes) break;
        if (next - i <= forced.size()) ++jumps.forced_bytes;
      }
      for (const TokenId token : forced) {
        if (i >= ids.size() || ids[i] != token) {
          ++totals_.jumps.strange;
          return;
        }
        matcher.accept_token(token);
        ++jumps.forced;
        ++i;
      }
      if (i < ids.size()) matcher.accept_token(ids[i]);
    }
    for (Jumps* sum : {&totals_.jumps, is_call ? &totals_.jumps_in_calls : nullptr}) {
      if (sum == nullptr) continue;
      sum->texts += jumps.texts;
      sum->tokens += jumps.tokens;
      sum->forced += jumps.forced;
      sum->forced_bytes += jumps.forced_bytes;
    }
    totals_.jumps.us.insert(totals_.jumps.us.end(), jumps.us.begin(), jumps.us.end());
  }

  std::vector<TokenId> random_tokens(std::string_view text) {
    std::vector<TokenId> ids, fitting;
    while (!text.empty()) {
      fitting.clear();
      for (size_t n = 1; n <= std::min(longest_, text.size()); ++n)
        if (const auto it = ids_.find(text.substr(0, n)); it != ids_.end())
          fitting.push_back(it->second);
      if (fitting.empty()) return {};
      ids.push_back(fitting[rng_.below(fitting.size())]);
      text.remove_prefix(vocab_.trie->bytes(ids.back()).size());
    }
    return ids;
  }

  static void append(const LeastOf& from, std::vector<double>& to) {
    to.insert(to.end(), from.times().begin(), from.times().end());
  }

  const Vocabulary& vocab_;
  const grammar::Whitespace whitespace_;
  const int replays_;
  Rng rng_;
  const TokensByBytes tokens_;
  JumpForward jump_;
  std::vector<uint32_t> words_;
  std::unordered_map<std::string_view, TokenId> ids_;
  size_t longest_ = 0;
  Totals totals_;
};

void write(JsonWriter& w, const char* name, const std::vector<double>& us, double unit) {
  const Percentiles p = percentiles(us);
  w.key(name).begin_object().member("count", us.size()).member("p50", p.p50 / unit);
  w.member("p99", p.p99 / unit).member("p999", p.p999 / unit).member("max", p.max / unit);
  w.end_object();
}

// The rows that do not depend on the given schemas.
struct Fixed {
  std::vector<GrammarCliff> cliffs;
  double batch_ms = 0;
  std::vector<MaskBatch> batches;
};

void write(JsonWriter& w, const std::vector<MaskBatch>& batches) {
  w.key("mask_batches").begin_array();
  for (const MaskBatch& b : batches) {
    w.begin_object().member("sequences", b.num_sequences).member("schemas", b.num_schemas);
    w.member("threads", b.num_threads).member("cold_us", b.cold_us).member("warm_us", b.warm_us);
    w.member("choices_us", b.choices_us).member("entries_us", b.entries_us);
    w.member("entries_cpu_us", b.entries_cpu_us).member("narrowed", b.narrowed).end_object();
  }
  w.end_array();
}

std::string to_json(const Totals& t, const Fixed& fixed, const Vocabulary& vocab, int replays) {
  std::string out;
  JsonWriter w(out);
  w.begin_object().member("vocab", vocab.name).member("vocab_size", vocab.trie->vocab_size());
  w.member("replays", replays).member("schemas", t.schemas).member("declined", t.declined);
  w.member("instances", t.instances).member("instances_rejected", t.instances_rejected);
  write(w, "first_mask_ms", t.first_mask_us, 1e3);
  write(w, "mask_cold_us", t.cold_us, 1);
  write(w, "mask_built_ahead_us", t.ahead_us, 1);
  write(w, "mask_made_ahead_us", t.masks_ahead_us, 1);
  write(w, "build_ahead_us", t.build_ahead_us, 1);
  write(w, "mask_warm_us", t.warm_us, 1);
  write(w, "mask_random_tokens_us", t.random_us, 1);
  write(w, "jump_search_us", t.jumps.us, 1);
  for (const auto& [name, jumps] :
       {std::pair("jump_forward", &t.jumps), std::pair("jump_forward_calls", &t.jumps_in_calls)}) {
    w.key(name).begin_object().member("texts", jumps->texts).member("tokens", jumps->tokens);
    w.member("forced", jumps->forced).member("not_canonical", jumps->strange);
    w.member("gain", jumps->gain()).member("gain_max", jumps->gain_max()).end_object();
  }
  for (const auto& [name, list] : {std::pair("slowest_first_mask", &t.slowest_compile),
                                   std::pair("slowest_mask", &t.slowest_mask)}) {
    w.key(name).begin_array();
    for (const auto& [us, schema] : *list)
      w.begin_object().member("schema", schema).member("us", us).end_object();
    w.end_array();
  }
  w.key("cliffs").begin_array();
  for (const GrammarCliff& cliff : fixed.cliffs) {
    w.begin_object().member("name", cliff.name).member("declined", cliff.declined);
    if (!cliff.declined)
      w.member("first_mask_ms", cliff.first_mask_ms).member("mask_p50_us", cliff.mask_us);
    w.end_object();
  }
  w.end_array().member("batch_256_ms", fixed.batch_ms);
  write(w, fixed.batches);
  w.end_object();
  return out;
}

void print(const Fixed& fixed, const FigureOutput& output) {
  const auto goal = [](double limit) {
    return limit > 0 ? fmt::format(" (goal {:g})", limit) : std::string();
  };
  for (const GrammarCliff& c : fixed.cliffs) {
    if (c.declined) {
      output.print("G6 {}: declined\n", c.name);
      continue;
    }
    output.print("G6 {}: first mask {:.2f} ms{}, masks {:.2f} us{}\n", c.name, c.first_mask_ms,
                 goal(c.first_mask_ms_goal), c.mask_us, goal(c.mask_us_goal));
  }
  output.print("G7 a step of 256 sequences: {:.3f} ms (goal 0.5)\n", fixed.batch_ms);
}

void print(const std::vector<MaskBatch>& batches, const FigureOutput& output) {
  output.print("{:<40}{:>9}{:>9}{:>9}{:>9}{:>11}{:>10}\n", "masks of a step, us", "cold", "warm",
               "choices", "entries", "entries, cpu", "narrowed");
  for (const MaskBatch& b : batches)
    output.print("{:<40}{:>9.1f}{:>9.1f}{:>9.1f}{:>9.1f}{:>11.1f}{:>9.0f}%\n",
                 fmt::format("{} sequences, {} schemas, {} threads", b.num_sequences, b.num_schemas,
                             b.num_threads),
                 b.cold_us, b.warm_us, b.choices_us, b.entries_us, b.entries_cpu_us,
                 100 * b.narrowed);
}

void print(const Totals& t, const Vocabulary& vocab, int replays, const FigureOutput& output) {
  output.print(
      "vocabulary {} of {} tokens; {} schemas, {} declined; {} valid instances, {} rejected\n",
      vocab.name, vocab.trie->vocab_size(), t.schemas, t.declined, t.instances,
      t.instances_rejected);
  output.print("processor time of one thread, the least of {} replays for each call\n", replays);
  output.print("{:<30}{:>10}{:>10}{:>10}{:>10}{:>11}\n", "", "p50", "p99", "p99.9", "max", "calls");
  const auto row = [&output](const char* name, const std::vector<double>& us, double unit) {
    const Percentiles p = percentiles(us);
    output.print("{:<30}{:>10.2f}{:>10.2f}{:>10.2f}{:>10.2f}{:>11}\n", name, p.p50 / unit,
                 p.p99 / unit, p.p999 / unit, p.max / unit, us.size());
  };
  row("G2 time to first mask, ms", t.first_mask_us, 1e3);
  row("G1 mask and commit, cold, us", t.cold_us, 1);
  row("the same, rules built, us", t.ahead_us, 1);
  row("the same, masks ahead, us", t.masks_ahead_us, 1);
  row("building rules ahead, us", t.build_ahead_us, 1);
  row("mask and commit, warm, us", t.warm_us, 1);
  row("random tokenisations, cold, us", t.random_us, 1);
  row("search for forced tokens, us", t.jumps.us, 1);
  for (const auto& [name, jumps] :
       {std::pair("all", &t.jumps), std::pair("function calls", &t.jumps_in_calls)})
    output.print(
        "jump-forward, {}: {} of {} tokens forced in {} texts, {:.3f} tokens a forward (at most "
        "{:.3f} if all forced bytes were tokens), {} texts with a forced token that is not "
        "theirs\n",
        name, jumps->forced, jumps->tokens, jumps->texts, jumps->gain(), jumps->gain_max(),
        jumps->strange);
  for (const auto& [us, name] : t.slowest_compile)
    output.print("  slow to compile: {:.2f} ms  {}\n", us / 1e3, name);
  for (const auto& [us, name] : t.slowest_mask)
    output.print("  slow mask: {:.1f} us  {}\n", us, name);
}

}  // namespace

int run_grammar(const std::vector<std::string>& args) {
  std::filesystem::path schemas, vocab_path;
  FigureOutput output;
  std::string whitespace = "any";
  int32_t replays = 3, stride = 1;
  uint64_t seed = 1;
  bool only_batches = false;
  SettingTable table;
  table.group("Cases");
  table.path(
      "schemas", schemas,
      "file of schemas, one a line: {\"name\", \"schema\", \"tests\": [{\"valid\", \"data\"}]}");
  add_vocab_setting(table, vocab_path);
  add_whitespace_setting(table, whitespace);
  table.group("Measurement");
  table.integer("replays", replays, 1, 100, "each call counts with the least of so many");
  table.integer("stride", stride, 1, 1000000, "take every so-manyth schema");
  table.integer("seed", seed, 0, std::numeric_limits<int64_t>::max(),
                "of the random tokenisations");
  table.toggle("only-batches", only_batches, "measure only what the masks of a step cost");
  table.group("Output");
  output.add_setting(table);
  CommandLine command{
      "espalier_bench grammar",
      "Compiles schemas and fills masks along their valid instances, cold and warm, "
      "tokenised canonically and at random.",
      "Example:\n  espalier_bench grammar --schemas cases.jsonl --vocab "
      "llama3.tiktoken",
      "",
      {}};
  if (const auto exit_code = parse_plain_command(command, table, args)) return *exit_code;
  if (schemas.empty() && !only_batches)
    return report(invalid_argument("give --schemas FILE"), kExitUsage);
  const auto vocab = load_vocabulary(vocab_path);
  if (!vocab) return report(vocab.error(), kExitFailure);
  if (only_batches) {
    const std::vector<MaskBatch> batches = measure_mask_batches(*vocab);
    print(batches, output);
    std::string json;
    JsonWriter w(json);
    w.begin_object();
    write(w, batches);
    w.end_object();
    return output.finish(json);
  }
  GrammarBench bench(*vocab, whitespace_of(whitespace), replays, seed);
  int64_t number = 0;
  const Status read = for_each_line(schemas, [&](std::string_view line) -> Status {
    if (number++ % stride != 0) return {};
    ESP_ASSIGN_OR_RETURN(const SchemaCase test, grammar::parse_schema_case(line));
    bench.run(test);
    return {};
  });
  if (!read.ok()) return report(read, kExitFailure);
  const Fixed fixed{measure_cliffs(*vocab), measure_batch_ms(*vocab), measure_mask_batches(*vocab)};
  print(bench.totals(), *vocab, replays, output);
  print(fixed, output);
  print(fixed.batches, output);
  return output.finish(to_json(bench.totals(), fixed, *vocab, replays));
}

}  // namespace espalier::bench
