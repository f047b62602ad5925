#include "text/tokenizer/tiktoken.h"

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <string>

#include "base/base64.h"
#include "base/log.h"
#include "text/tokenizer/pipeline_tokenizer.h"
#include "text/tokenizer/rank_bpe.h"

namespace espalier {
namespace {

namespace json = boost::json;

// What the file itself does not say.
struct RankFileKind {
  std::string_view name;  // in the file's name
  int num_ranks;
  std::string_view pattern;
  std::vector<std::pair<std::string, TokenId>> specials;
  std::vector<std::string> bos, eos;
  bool begins_with_bos = false;  // specials[0]
};

constexpr std::string_view kGpt2Pattern =
    R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)";
constexpr std::string_view kCl100kPattern =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)";
constexpr std::string_view kO200kPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwenPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

using Specials = std::vector<std::pair<std::string, TokenId>>;

// FORMAT with each number of [0, count), from `id` on.
void append_numbered(std::string_view prefix, int first, int count, TokenId id, Specials& out) {
  for (int i = 0; i < count; ++i) {
    out.emplace_back(fmt::format("<|{}_{}|>", prefix, first + i), id + i);
  }
}

// The first id after the ranks, from which a vocabulary of another size counts on.
RankFileKind gpt2_kind(int end) {
  return {"gpt2", 50256, kGpt2Pattern, {{"<|endoftext|>", end}}, {}, {"<|endoftext|>"}};
}

RankFileKind p50k_kind(int) {  // its ranks leave 50256 out
  return {"p50k", 50280, kGpt2Pattern, {{"<|endoftext|>", 50256}}, {}, {"<|endoftext|>"}};
}

RankFileKind cl100k_kind(int end) {
  return {"cl100k",
          100256,
          kCl100kPattern,
          {{"<|endoftext|>", end + 1},
           {"<|fim_prefix|>", end + 2},
           {"<|fim_middle|>", end + 3},
           {"<|fim_suffix|>", end + 4},
           {"<|endofprompt|>", end + 20}},
          {},
          {"<|endoftext|>"}};
}

RankFileKind o200k_kind(int end) {
  return {"o200k",
          199998,
          kO200kPattern,
          {{"<|endoftext|>", end + 1}, {"<|endofprompt|>", end + 20}},
          {},
          {"<|endoftext|>"}};
}

RankFileKind harmony_kind(int end) {  // gpt-oss
  RankFileKind kind{"harmony",
                    199998,
                    kO200kPattern,
                    {{"<|startoftext|>", end},
                     {"<|endoftext|>", end + 1},
                     {"<|return|>", end + 4},
                     {"<|constrain|>", end + 5},
                     {"<|channel|>", end + 7},
                     {"<|start|>", end + 8},
                     {"<|end|>", end + 9},
                     {"<|message|>", end + 10},
                     {"<|call|>", end + 14}},
                    {"<|startoftext|>"},
                    {"<|return|>", "<|call|>", "<|endoftext|>"}};
  for (const int i : {2, 3, 6, 11, 12, 13}) {
    append_numbered("reserved", end + i, 1, end + i, kind.specials);
  }
  append_numbered("reserved", end + 15, 1075, end + 15, kind.specials);
  return kind;
}

RankFileKind llama3_kind(int end) {
  RankFileKind kind{"llama",
                    128000,
                    kLlama3Pattern,
                    {{"<|begin_of_text|>", end},
                     {"<|end_of_text|>", end + 1},
                     {"<|finetune_right_pad_id|>", end + 4},
                     {"<|start_header_id|>", end + 6},
                     {"<|end_header_id|>", end + 7},
                     {"<|eom_id|>", end + 8},
                     {"<|eot_id|>", end + 9},
                     {"<|python_tag|>", end + 10}},
                    {"<|begin_of_text|>"},
                    {"<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"},
                    /*begins_with_bos=*/true};
  append_numbered("reserved_special_token", 0, 2, end + 2, kind.specials);
  append_numbered("reserved_special_token", 2, 1, end + 5, kind.specials);
  append_numbered("reserved_special_token", 3, 245, end + 11, kind.specials);
  return kind;
}

RankFileKind qwen_kind(int end) {
  RankFileKind kind{
      "qwen",       151643,
      kQwenPattern, {{"<|endoftext|>", end}, {"<|im_start|>", end + 1}, {"<|im_end|>", end + 2}},
      {},           {"<|endoftext|>", "<|im_end|>"}};
  append_numbered("extra", 0, 205, end + 3, kind.specials);
  return kind;
}

RankFileKind kind_of(std::string_view name, int num_ranks, TokenId id_end) {
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const RankFileKind kinds[] = {cl100k_kind(id_end), harmony_kind(id_end), o200k_kind(id_end),
                                llama3_kind(id_end), qwen_kind(id_end),    gpt2_kind(id_end),
                                p50k_kind(id_end)};
  for (const RankFileKind& kind : kinds) {
    if (lower.find(kind.name) != std::string::npos) return kind;
  }
  if (lower.find("r50k") != std::string::npos) return gpt2_kind(id_end);
  for (const RankFileKind& kind : kinds) {
    if (kind.num_ranks == num_ranks && kind.name != "harmony") return kind;
  }
  log_warning(
      "the vocabulary of {} ranks is not one of the known ones; words are cut as cl100k cuts them "
      "(name "
      "the file after its kind: cl100k, o200k, harmony, llama, qwen, gpt2, p50k)",
      num_ranks);
  return RankFileKind{"", num_ranks,        kCl100kPattern, {{"<|endoftext|>", id_end}},
                      {}, {"<|endoftext|>"}};
}

struct Ranks {
  Vocabulary vocabulary{/*byte_level=*/true, 0};
  int count = 0;
};

Result<Ranks> parse_ranks(std::string_view text) {
  Ranks ranks;
  const auto num_lines = static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
  ranks.vocabulary = Vocabulary(/*byte_level=*/true, num_lines + 1);
  std::string bytes;
  for (size_t line_number = 1; !text.empty(); ++line_number) {
    const size_t line_end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, line_end);
    text.remove_prefix(std::min(line_end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const size_t space = line.find(' ');
    TokenId rank = -1;
    bytes.clear();
    bool good = space != std::string_view::npos && decode_base64(line.substr(0, space), bytes);
    if (good) {
      const auto [end, problem] =
          std::from_chars(line.data() + space + 1, line.data() + line.size(), rank);
      good = problem == std::errc() && end == line.data() + line.size() && !bytes.empty();
    }
    if (!good) {
      return fail(error(StatusCode::kDataLoss,
                        "line {} should be a token in base64 and its rank: IQ== 0", line_number));
    }
    if (ranks.vocabulary.table().find(bytes)) {
      return fail(error(StatusCode::kDataLoss, "line {} has a token a second time", line_number));
    }
    if (Status status = ranks.vocabulary.add_bytes(bytes, rank); !status.ok()) {
      return fail(status.with_context(fmt::format("line {}", line_number)));
    }
    ++ranks.count;
  }
  if (ranks.count == 0) return fail(error(StatusCode::kDataLoss, "there is no token"));
  return ranks;
}

json::value split_by(std::string_view pattern) {
  return {{"type", "Sequence"},
          {"pretokenizers",
           {{{"type", "Split"},
             {"pattern", {{"Regex", pattern}}},
             {"behavior", "Isolated"},
             {"invert", false}},
            {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
}

}  // namespace

bool looks_like_tiktoken(std::string_view text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  const size_t space = line.find(' ');
  std::string bytes;
  return line.size() < 1024 && space != std::string_view::npos && space > 0 &&
         decode_base64(line.substr(0, space), bytes);
}

Result<std::unique_ptr<Tokenizer>> parse_tiktoken(std::string_view text, std::string_view name,
                                                  bool normalizes_nfc) {
  ESP_ASSIGN_OR_RETURN(Ranks ranks, parse_ranks(text));
  RankFileKind kind = kind_of(name, ranks.count, ranks.vocabulary.id_end());
  PipelineTokenizer::Parts parts{.vocabulary = std::move(ranks.vocabulary)};
  if (normalizes_nfc) {
    ESP_ASSIGN_OR_RETURN(parts.normalizer,
                         Normalizer::parse(json::object{{"type", "NFC"}}, "normalizer"));
  }
  ESP_ASSIGN_OR_RETURN(parts.pre_tokenizer,
                       PreTokenizer::parse(split_by(kind.pattern), "pre_tokenizer"));
  ESP_ASSIGN_OR_RETURN(parts.decoder,
                       Decoder::parse(json::object{{"type", "ByteLevel"}}, "decoder"));
  RankBpeOptions options;
  options.ranks.resize(static_cast<size_t>(parts.vocabulary.id_end()));
  for (size_t id = 0; id < options.ranks.size(); ++id) {
    options.ranks[id] = static_cast<uint32_t>(id);
  }
  parts.model = std::make_unique<RankBpe>(parts.vocabulary.table(), std::move(options));
  for (auto& [content, id] : kind.specials) {
    if (parts.vocabulary.has(id)) continue;
    parts.added.push_back({.id = id, .content = std::move(content), .special = true});
  }
  if (kind.begins_with_bos) parts.frame.before = {kind.specials[0].second};
  parts.bos_tokens = std::move(kind.bos);
  parts.eos_tokens = std::move(kind.eos);
  return std::make_unique<PipelineTokenizer>(std::move(parts));
}

}  // namespace espalier
