// espalier_bench quality: what a format of weights, or of keys and values, changes of a model's
// answers. A reference writes texts; for each of their tokens each format's distribution behind the
// same tokens is compared with the reference's: the divergence KL(reference || format), and whether
// both have the same likeliest token. Besides, the perplexity of a given text.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <cmath>
#include <span>
#include <utility>

#include "apps/bench/report.h"
#include "apps/session.h"
#include "base/mapped_file.h"
#include "bench/commands/commands.h"
#include "bench/commands/measure.h"

namespace espalier::bench {
using namespace apps;
namespace {

using Logprob = std::pair<TokenId, float>;

struct Options {
  std::string reference;             // empty: float32, or of a GPU bfloat16
  std::vector<std::string> formats;  // empty: those of the device
  int32_t texts = 16, tokens = 64;
  int32_t top = 1000;
  std::filesystem::path text;
  int32_t window = 512;
};

// Beginnings for the reference to go on from, of stories, statements, lists and code.
constexpr std::array<std::string_view, 16> kOpenings = {
    "Once upon a time there was",
    "The most important thing about",
    "Question: What is the capital of France?\nAnswer:",
    "She opened the door and",
    "In the morning, the",
    "def main():\n",
    "There are three reasons:",
    "It was a cold day when",
    "{\"name\": \"",
    "The river runs",
    "How do you",
    "1 + 1 =",
    "My friend told me that",
    "Yesterday",
    "The two children",
    "A good rule is to",
};

// "q8_0", "bfloat16+kv=float32", "model-Q4_K_M.gguf": a type of the weights or the model's file,
// and a type of keys and values behind "+kv=".
struct Format {
  std::string name, dtype = "auto", kv = "auto";
  std::filesystem::path model;  // empty: --model-path
};

Result<Format> parse_format(const std::string& text) {
  Format out{.name = text};
  std::string_view weights = text;
  if (const size_t at = text.find("+kv="); at != std::string::npos) {
    out.kv = text.substr(at + 4);
    weights = weights.substr(0, at);
    if (out.kv != "float32" && out.kv != "bfloat16" && out.kv != "fp8_e4m3")
      return fail(
          invalid_argument("'{}': keys and values are float32, bfloat16 or fp8_e4m3", text));
  }
  if (weights.ends_with(".gguf") || weights.find('/') != std::string_view::npos) {
    out.model = weights;
    out.name = out.model.filename().string() + text.substr(weights.size());
    return out;
  }
  constexpr std::array<std::string_view, 9> kTypes = {"auto", "float32", "bfloat16", "q8_0", "q4_k",
                                                      "fp8",  "int4",    "nvfp4",    "mxfp4"};
  if (std::ranges::find(kTypes, weights) == kTypes.end())
    return fail(invalid_argument(
        "'{}' is neither a model's file nor one of auto, float32, bfloat16, q8_0, q4_k, fp8, int4, "
        "nvfp4, mxfp4",
        weights));
  out.dtype = weights;
  return out;
}

// A text of the reference, and its distribution behind each token from `begin` - 1 on.
struct Text {
  std::vector<TokenId> ids;
  size_t begin = 0;                         // of what the reference wrote
  std::vector<std::vector<Logprob>> after;  // [ids.size() - begin], each the likeliest first
};

struct Quality {
  std::string name;
  int64_t weight_bytes = 0;
  std::vector<double> divergences;       // of each token, in nats
  std::vector<double> text_divergences;  // means of each text
  int64_t num_agreed = 0;
  double perplexity = 0;  // 0: no text was given
};

AppConfig config_of(AppConfig config, const Format& format) {
  EngineConfig& engine = config.engine;
  engine.model.dtype = format.dtype;
  engine.cache.kv_cache_dtype = format.kv;
  if (!format.model.empty()) engine.model.model_path = format.model;
  engine.sampling.logprobs_mode = "raw";
  engine.sampling.sampling_defaults = "openai";
  return config;
}

// The distribution behind `ids`: the likeliest `top` tokens, and those that are named.
Result<TokenLogprobs> distribution_behind(Engine& engine, std::span<const TokenId> ids, int32_t top,
                                          std::vector<TokenId> named) {
  GenerateRequest request;
  request.input_ids.assign(ids.begin(), ids.end());
  request.sampling.max_new_tokens = 0;
  request.return_logprob = true;
  request.top_logprobs_num = top;
  request.token_ids_logprob = std::move(named);
  ESP_ASSIGN_OR_RETURN(GenerateResult result, engine.generate(std::move(request)));
  if (!result.next_logprobs)
    return fail(error(StatusCode::kInternal, "there is no distribution behind a prompt"));
  return std::move(*result.next_logprobs);
}

Result<Text> write_text(Engine& engine, const Options& options, int32_t index) {
  Text text;
  text.ids = engine.tokenizer()->encode(kOpenings[static_cast<size_t>(index) % kOpenings.size()]);
  text.begin = text.ids.size();
  GenerateRequest request;
  request.input_ids = text.ids;
  request.sampling.max_new_tokens = options.tokens;
  request.sampling.temperature = 1.0f;
  request.sampling.sampling_seed = static_cast<uint64_t>(index);
  ESP_ASSIGN_OR_RETURN(const GenerateResult result, engine.generate(std::move(request)));
  text.ids.insert(text.ids.end(), result.output_ids.begin(), result.output_ids.end());
  for (size_t i = text.begin; i < text.ids.size(); ++i) {
    ESP_ASSIGN_OR_RETURN(
        TokenLogprobs behind,
        distribution_behind(engine, std::span(text.ids).first(i), options.top, {}));
    text.after.push_back(std::move(behind.top));
  }
  return text;
}

// KL(reference || format) over the reference's likeliest tokens, each by itself, and all others
// together: never above that over all tokens.
double divergence(const std::vector<Logprob>& reference, const std::vector<Logprob>& format) {
  double sum = 0, reference_rest = 1, format_rest = 1;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double p = std::exp(static_cast<double>(reference[i].second));
    sum += p * (static_cast<double>(reference[i].second) - format[i].second);
    reference_rest -= p;
    format_rest -= std::exp(static_cast<double>(format[i].second));
  }
  // Below this the rest is the rounding of the sums.
  constexpr double kLeastRest = 1e-5;
  if (reference_rest > kLeastRest)
    sum += reference_rest * std::log(reference_rest / std::max(format_rest, kLeastRest));
  return std::max(sum, 0.0);
}

Status compare(Engine& engine, const std::vector<Text>& texts, Quality& quality) {
  for (const Text& text : texts) {
    double sum = 0;
    for (size_t i = text.begin; i < text.ids.size(); ++i) {
      const std::vector<Logprob>& reference = text.after[i - text.begin];
      std::vector<TokenId> named;
      for (const auto& [id, logprob] : reference) named.push_back(id);
      ESP_ASSIGN_OR_RETURN(
          const TokenLogprobs behind,
          distribution_behind(engine, std::span(text.ids).first(i), 1, std::move(named)));
      if (behind.wanted.size() != reference.size() || behind.top.empty())
        return error(StatusCode::kInternal, "{} of {} log-probabilities came", behind.wanted.size(),
                     reference.size());
      quality.divergences.push_back(divergence(reference, behind.wanted));
      sum += quality.divergences.back();
      if (behind.top[0].first == reference[0].first) ++quality.num_agreed;
    }
    quality.text_divergences.push_back(sum / static_cast<double>(text.ids.size() - text.begin));
  }
  return {};
}

// exp of the mean negative log-probability of each window's tokens but the first.
Result<double> perplexity(Engine& engine, std::span<const TokenId> ids, size_t window) {
  double sum = 0;
  size_t count = 0;
  for (size_t begin = 0; begin + 1 < ids.size(); begin += window) {
    const auto part = ids.subspan(begin, std::min(window, ids.size() - begin));
    GenerateRequest request;
    request.input_ids.assign(part.begin(), part.end());
    request.sampling.max_new_tokens = 0;
    request.return_logprob = true;
    request.logprob_start_len = 0;
    ESP_ASSIGN_OR_RETURN(const GenerateResult result, engine.generate(std::move(request)));
    for (const TokenLogprobs& token : result.input_logprobs) sum -= token.logprob;
    count += result.input_logprobs.size();
  }
  if (count == 0)
    return fail(invalid_argument("--text: it has {} tokens; two are needed", ids.size()));
  return std::exp(sum / static_cast<double>(count));
}

class Comparison {
 public:
  Comparison(const Options& options, const AppConfig& config)
      : options_(options), config_(config) {}

  // Has the reference write its texts, and compares it with itself.
  Result<Quality> begin(const Format& reference) {
    if (!options_.text.empty()) {
      ESP_ASSIGN_OR_RETURN(text_, read_text_file(options_.text));
    }
    ESP_ASSIGN_OR_RETURN(const auto engine, start(reference));
    if (engine->tokenizer() == nullptr)
      return fail(invalid_argument("a tokenizer is needed: leave out --skip-tokenizer-init"));
    options_.top = std::min(options_.top, engine->model_info().vocab_size);
    for (int32_t i = 0; i < options_.texts; ++i) {
      ESP_ASSIGN_OR_RETURN(Text text, write_text(*engine, options_, i));
      if (!text.after.empty()) texts_.push_back(std::move(text));
    }
    if (texts_.empty()) return fail(error(StatusCode::kInternal, "the reference wrote no token"));
    return measure(*engine, reference.name);
  }
  Result<Quality> add(const Format& format) {
    ESP_ASSIGN_OR_RETURN(const auto engine, start(format));
    return measure(*engine, format.name);
  }

 private:
  Result<std::unique_ptr<Engine>> start(const Format& format) {
    AppConfig config = config_of(config_, format);
    auto engine = start_engine(config);
    if (!engine) return fail(engine.error().with_context(format.name));
    return engine;
  }
  Result<Quality> measure(Engine& engine, const std::string& name) {
    Quality out{.name = name, .weight_bytes = engine.stats().memory.weight_bytes};
    ESP_RETURN_IF_ERROR(compare(engine, texts_, out));
    if (text_.empty()) return out;
    const std::vector<TokenId> ids = engine.tokenizer()->encode(text_);
    const auto window = static_cast<size_t>(std::min(options_.window, max_input_len(engine)));
    ESP_ASSIGN_OR_RETURN(out.perplexity, perplexity(engine, ids, window));
    return out;
  }

  Options options_;
  const AppConfig& config_;
  std::string text_;
  std::vector<Text> texts_;
};

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

double agreement(const Quality& quality) {
  return static_cast<double>(quality.num_agreed) / static_cast<double>(quality.divergences.size());
}

void print(const FigureOutput& output, const Quality& quality, double reference_perplexity) {
  const auto [least, most] = std::ranges::minmax(quality.text_divergences);
  const Distribution tokens = distribution(quality.divergences);
  output.print("{:<28} {:>9.1f} {:>9.6f} {:>9.6f} {:>9.6f}-{:<9.6f} {:>9.6f} {:>9.6f} {:>8.2f}",
               quality.name, static_cast<double>(quality.weight_bytes) / 1e6,
               mean(quality.divergences), median(quality.text_divergences), least, most,
               tokens.median, tokens.p99, 100 * agreement(quality));
  if (quality.perplexity > 0)
    output.print(" {:>10.4f} {:>+8.2f}", quality.perplexity,
                 100 * (quality.perplexity / reference_perplexity - 1));
  output.print("\n");
}

boost::json::object to_json(const Quality& quality) {
  const auto [least, most] = std::ranges::minmax(quality.text_divergences);
  const Distribution tokens = distribution(quality.divergences);
  boost::json::object out{{"format", quality.name},
                          {"weight_bytes", quality.weight_bytes},
                          {"tokens", quality.divergences.size()},
                          {"divergence_mean", mean(quality.divergences)},
                          {"divergence_token_median", tokens.median},
                          {"divergence_token_p99", tokens.p99},
                          {"divergence_token_max", tokens.max},
                          {"divergence_text_median", median(quality.text_divergences)},
                          {"divergence_text_min", least},
                          {"divergence_text_max", most},
                          {"agreement", agreement(quality)}};
  if (quality.perplexity > 0) out["perplexity"] = quality.perplexity;
  return out;
}

bool is_cuda(const AppConfig& config) { return config.engine.compute.device.starts_with("cuda"); }

Result<std::vector<Format>> formats_of(const Options& options, const AppConfig& config) {
  const bool cuda = is_cuda(config);
  std::vector<std::string> names = {options.reference};
  if (names[0].empty()) names[0] = cuda ? "bfloat16" : "float32";
  std::vector<std::string> others = options.formats;
  if (others.empty() && cuda) others = {"fp8", "int4", "bfloat16+kv=fp8_e4m3", "fp8+kv=fp8_e4m3"};
  if (others.empty()) others = {"bfloat16", "q8_0", "q4_k"};
  names.insert(names.end(), others.begin(), others.end());
  std::vector<Format> out;
  for (const std::string& name : names) {
    ESP_ASSIGN_OR_RETURN(Format format, parse_format(name));
    out.push_back(std::move(format));
  }
  return out;
}

// On a CPU the same tokens have the same bits, so the reference must agree with itself.
Status check_reference(const Quality& quality, const AppConfig& config) {
  const double most = distribution(quality.divergences).max;
  if (is_cuda(config) || (most < 1e-6 && agreement(quality) == 1)) return {};
  return error(StatusCode::kInternal,
               "the reference differs from itself by {} nats and agrees in {:.2f} % of tokens",
               most, 100 * agreement(quality));
}

int measure_all(const Options& options, const AppConfig& config, const FigureOutput& output) {
  const auto formats = formats_of(options, config);
  if (!formats) return report(formats.error(), kExitUsage);
  Comparison comparison(options, config);
  boost::json::array rows;
  double reference_perplexity = 0;
  output.print("{:<28} {:>9} {:>9} {:>9} {:>19} {:>9} {:>9} {:>8}{}\n", "format", "MB", "KL mean",
               "of texts", "least-most", "of tokens", "p99", "agree %",
               options.text.empty() ? "" : " perplexity  change %");
  for (const Format& format : *formats) {
    const bool is_reference = rows.empty();
    const auto quality = is_reference ? comparison.begin(format) : comparison.add(format);
    if (!quality) return report(quality.error(), kExitFailure);
    if (is_reference) {
      if (const Status same = check_reference(*quality, config); !same.ok())
        return report(same, kExitFailure);
      reference_perplexity = quality->perplexity;
    }
    print(output, *quality, reference_perplexity);
    rows.push_back(to_json(*quality));
  }
  return output.finish(boost::json::serialize(
      boost::json::object{{"texts", options.texts}, {"formats", std::move(rows)}}));
}

}  // namespace

int run_quality(const std::vector<std::string>& args) {
  AppConfig config;
  config.log_level = "error";
  config.engine.compute.device = "cpu";
  Options options;
  FigureOutput output;
  SettingTable table;
  table.group("Comparison");
  table
      .text("reference", options.reference, "FORMAT",
            "that writes the texts: auto, float32, bfloat16, q8_0, q4_k, fp8, int4, mxfp4, or a "
            "model's file or folder; +kv=TYPE behind it is that of keys and values")
      .default_text = "float32; on a GPU bfloat16";
  Setting& formats = table.list("format", options.formats, "FORMAT", "that is compared with it");
  formats.takes_several = true;
  formats.default_text = "bfloat16 q8_0 q4_k; on a GPU fp8, int4 and keys and values of 8 bits";
  table.integer("texts", options.texts, 1, 100000, "that the reference writes");
  table.integer("tokens", options.tokens, 1, 100000, "of each text, at most");
  table.integer("top", options.top, 1, 1 << 20,
                "tokens of the reference's distribution that count by themselves, the likeliest; "
                "the others count together (on a GPU 1,024 at most)");
  table.path("text", options.text, "a file whose perplexity is measured too");
  table.integer("window", options.window, 2, 1 << 20, "tokens of it that see each other");
  output.add_setting(table);
  CommandLine command{"espalier_bench quality",
                      "Compares a model's formats by the tokens that they make likely.",
                      "Example:\n  espalier_bench quality --format q8_0 model-Q4_0.gguf",
                      "",
                      {}};
  if (const auto exit_code = parse_engine_command(command, table, config, args)) return *exit_code;
  return measure_all(options, config, output);
}

}  // namespace espalier::bench
