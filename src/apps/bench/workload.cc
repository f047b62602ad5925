#include "apps/bench/workload.h"

#include <algorithm>
#include <array>

#include "base/rng.h"

namespace espalier::apps {
namespace {

struct Preset {
  std::string_view name;
  int32_t input_len, output_len;  // tokens
};
constexpr std::array kPresets = {
    Preset{"chat_simulation", 512, 256},
    Preset{"code_generation", 2048, 1024},
    Preset{"document_qa", 4096, 512},
    Preset{"structured_extraction", 1024, 128},
};

int32_t scaled(int32_t length, double scale) {
  return std::max<int32_t>(1, static_cast<int32_t>(length * scale));
}

// Draws from one generator in a fixed order, so the same options and seed give the same requests
// everywhere. Token ids keep to the middle three quarters of the vocabulary, for special and byte
// tokens mostly lie at its ends.
class Drawer {
 public:
  Drawer(const WorkloadOptions& options, int32_t vocab_size)
      : rng_(options.seed), ratio_(options.range_ratio), vocab_size_(vocab_size) {}

  int32_t length(int32_t max) {
    const auto min = std::max<int32_t>(1, static_cast<int32_t>(max * ratio_));
    return static_cast<int32_t>(rng_.between(std::min(min, max), max));
  }
  std::vector<int32_t> ids(int32_t count) {
    std::vector<int32_t> out(static_cast<size_t>(count));
    const int32_t low = vocab_size_ / 8, high = vocab_size_ - vocab_size_ / 8 - 1;
    for (int32_t& id : out) id = static_cast<int32_t>(rng_.between(low, std::max(low, high)));
    return out;
  }

 private:
  Rng rng_;
  double ratio_;
  int32_t vocab_size_;
};

}  // namespace

void add_workload_settings(SettingTable& table, WorkloadOptions& options) {
  table.group("Workload");
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.emplace_back(preset.name);
  table.choice("preset", options.preset, names, "lengths of a named use");
  Setting& kind = table.choice("dataset-name", options.kind, {"random", "shared-prefix", "chat"},
                               "prompts that share nothing; groups that share their beginning; "
                               "conversations of several turns");
  kind.aliases = {"workload"};
  table.integer("num-prompts", options.num_prompts, 1, 10000000, "requests in all");
  table
      .integer("random-input-len", options.input_len, 1, 1 << 24,
               "tokens of a prompt (chat: of a turn)")
      .aliases = {"input-len"};
  table.integer("random-output-len", options.output_len, 1, 1 << 24, "tokens of an answer")
      .aliases = {"output-len"};
  table.number("random-range-ratio", options.range_ratio, 0, 1,
               "lengths are drawn between this part of the length and the whole");
  table.number("scale", options.scale, 1e-6, 1e6, "multiplies all lengths");
  table.integer("num-groups", options.num_groups, 1, 1 << 20, "of shared-prefix");
  table.number("shared-fraction", options.shared_fraction, 0, 1,
               "part of a prompt that its group shares, of shared-prefix");
  table.integer("turns", options.turns, 1, 1000, "of a conversation, of chat");
  table.integer("seed", options.seed, 0, int64_t{1} << 62, "of lengths, tokens and arrivals");
}

// A preset gives the lengths that were not given by themselves. A setting of another kind of
// workload is refused instead of being without effect.
Status resolve_workload(WorkloadOptions& options, const SettingTable& table) {
  if (!options.preset.empty()) {
    const auto* preset = std::find_if(kPresets.begin(), kPresets.end(),
                                      [&](const Preset& p) { return p.name == options.preset; });
    if (preset == kPresets.end())
      return invalid_argument("--preset: there is none named '{}'", options.preset);
    if (!table.find("random-input-len")->given()) options.input_len = preset->input_len;
    if (!table.find("random-output-len")->given()) options.output_len = preset->output_len;
  }
  options.input_len = scaled(options.input_len, options.scale);
  options.output_len = scaled(options.output_len, options.scale);
  if (options.kind != "shared-prefix") {
    for (std::string_view name : {"num-groups", "shared-fraction"})
      if (table.find(name)->given())
        return invalid_argument("{} belongs to --dataset-name shared-prefix, not to {}",
                                table.find(name)->set_by, options.kind);
  }
  if (options.kind != "chat" && table.find("turns")->given())
    return invalid_argument("{} belongs to --dataset-name chat, not to {}",
                            table.find("turns")->set_by, options.kind);
  return {};
}

// Groups take turns, so neighbours in time share no prefix and a cache must keep all groups at
// once. The last conversation may make the number of requests exceed num_prompts by less than its
// turns.
std::vector<Conversation> make_workload(const WorkloadOptions& options, int32_t vocab_size) {
  Drawer drawer(options, vocab_size);
  const bool chat = options.kind == "chat", shared = options.kind == "shared-prefix";
  std::vector<std::vector<int32_t>> prefixes;
  const auto prefix_len = static_cast<int32_t>(options.input_len * options.shared_fraction);
  for (int32_t group = 0; shared && group < options.num_groups; ++group)
    prefixes.push_back(drawer.ids(prefix_len));

  const int32_t turns = chat ? options.turns : 1;
  const int32_t count = (options.num_prompts + turns - 1) / turns;
  std::vector<Conversation> out(static_cast<size_t>(count));
  for (int32_t index = 0; index < count; ++index) {
    for (int32_t turn = 0; turn < turns; ++turn) {
      Turn made;
      int32_t own_len = drawer.length(options.input_len);
      if (shared) {
        made.ids = prefixes[static_cast<size_t>(index % options.num_groups)];
        own_len = std::max<int32_t>(1, options.input_len - prefix_len);
      }
      const std::vector<int32_t> own = drawer.ids(own_len);
      made.ids.insert(made.ids.end(), own.begin(), own.end());
      made.output_len = drawer.length(options.output_len);
      out[static_cast<size_t>(index)].turns.push_back(std::move(made));
    }
  }
  return out;
}

// A later turn's prompt holds all turns before it and their answers.
int32_t longest_request(const std::vector<Conversation>& workload) {
  int64_t longest = 0;
  for (const Conversation& conversation : workload) {
    int64_t tokens = 0;
    for (const Turn& turn : conversation.turns)
      tokens += static_cast<int64_t>(turn.ids.size()) + turn.output_len;
    longest = std::max(longest, tokens);
  }
  return static_cast<int32_t>(std::min<int64_t>(longest, 1 << 30));
}

// A text for servers that take no ids: one common word for each id, so that most tokenizers make
// about as many tokens of it.
std::string words_of(const std::vector<int32_t>& ids) {
  static constexpr std::array kWords = {
      "the",  "a",      "and",   "of",     "to",   "in",   "is",    "was",  "it",   "day",
      "man",  "time",   "house", "water",  "tree", "old",  "new",   "good", "came", "went",
      "saw",  "said",   "with",  "for",    "on",   "at",   "by",    "from", "he",   "she",
      "they", "we",     "you",   "little", "big",  "red",  "green", "road", "town", "night",
      "sun",  "garden", "book",  "word",   "hand", "door", "bird",  "dog"};
  std::string out;
  for (const int32_t id : ids) {
    if (!out.empty()) out += ' ';
    out += kWords[static_cast<size_t>(id) % kWords.size()];
  }
  return out;
}

}  // namespace espalier::apps
