#include "apps/calibration.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <iterator>
#include <optional>

#include "apps/progress.h"
#include "base/mapped_file.h"
#include "engine/text_io/open_tokenizer.h"
#include "models/model_plan.h"
#include "tensor/work_pool.h"

namespace espalier::apps {
namespace {

using Tokens = std::vector<TokenId>;

// Below this, sums over inputs say little of them.
constexpr int64_t kLeastTokens = 512;

std::optional<std::string> text_of_line(std::string_view line) {
  boost::system::error_code problem;
  const boost::json::value value = boost::json::parse(line, problem);
  if (problem) return std::nullopt;
  if (value.is_string()) return std::string(value.get_string());
  if (!value.is_object()) return std::nullopt;
  const boost::json::value* const text = value.get_object().if_contains("text");
  if (text == nullptr || !text->is_string()) return std::nullopt;
  return std::string(text->get_string());
}

Result<std::vector<Tokens>> texts_of_lines(const Tokenizer& tokenizer,
                                           const CalibrationOptions& options,
                                           std::string_view lines) {
  std::vector<Tokens> out;
  for (int64_t number = 1; !lines.empty(); ++number) {
    const std::string_view line = lines.substr(0, lines.find('\n'));
    lines.remove_prefix(std::min(lines.size(), line.size() + 1));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::optional<std::string> text = text_of_line(line);
    if (!text)
      return fail(invalid_argument(
          "--calibration: line {} of {} is neither a JSON string nor an object with a string "
          "\"text\"",
          number, options.file.string()));
    Tokens ids = tokenizer.encode(*text);
    ids.resize(std::min(ids.size(), static_cast<size_t>(options.length)));
    if (!ids.empty()) out.push_back(std::move(ids));
  }
  return out;
}

// Each piece begins with the token that the vocabulary puts in front of texts, if any.
std::vector<Tokens> pieces_of_text(const Tokenizer& tokenizer, const CalibrationOptions& options,
                                   std::string_view text) {
  Tokens ids = tokenizer.encode(text);
  Tokens start;
  if (!ids.empty() && tokenizer.bos_id() == ids.front()) start.push_back(ids.front());
  const size_t length = static_cast<size_t>(options.length) - start.size();
  std::vector<Tokens> out;
  for (auto at = ids.begin() + std::ssize(start); at != ids.end();) {
    const auto count = std::min<int64_t>(static_cast<int64_t>(length), ids.end() - at);
    Tokens& piece = out.emplace_back(start);
    piece.insert(piece.end(), at, at + count);
    at += count;
  }
  return out;
}

}  // namespace

Result<std::vector<Tokens>> read_calibration_texts(const Tokenizer& tokenizer,
                                                   const CalibrationOptions& options) {
  ESP_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(options.file));
  std::vector<Tokens> all;
  if (options.file.extension() == ".jsonl") {
    ESP_ASSIGN_OR_RETURN(all, texts_of_lines(tokenizer, options, file.text()));
  } else {
    all = pieces_of_text(tokenizer, options, file.text());
  }
  const size_t count = std::min(all.size(), static_cast<size_t>(options.samples));
  std::vector<Tokens> out;
  int64_t tokens = 0;
  for (size_t i = 0; i < count; ++i) {
    out.push_back(std::move(all[i * all.size() / count]));
    tokens += std::ssize(out.back());
  }
  if (tokens < kLeastTokens)
    return fail(invalid_argument(
        "--calibration: {} samples of {} have {} tokens, but {} are the least: give a longer file, "
        "or raise --calibration-samples or --calibration-length",
        count, options.file.string(), tokens, kLeastTokens));
  return out;
}

Result<std::vector<calibration::LayerReport>> calibrate_folder(const std::filesystem::path& source,
                                                               const Checkpoint& checkpoint,
                                                               const CompressedFormat& format,
                                                               const CalibrationOptions& options,
                                                               RoundedMatrices& to) {
  ModelLoadOptions load;
  load.path = source;
  ESP_ASSIGN_OR_RETURN(const ModelPlan plan, plan_model(load));
  if (options.length > plan.spec.context_length)
    return fail(invalid_argument("--calibration-length is {}, but the model's context is {} tokens",
                                 options.length, plan.spec.context_length));
  ESP_ASSIGN_OR_RETURN(const auto tokenizer, open_tokenizer(source));
  ESP_ASSIGN_OR_RETURN(const std::vector<Tokens> texts,
                       read_calibration_texts(*tokenizer, options));
  for (const Tokens& text : texts)
    for (const TokenId id : text)
      if (id >= plan.spec.vocab_size)
        return fail(invalid_argument(
            "--calibration: a text has token {}, but the model's vocabulary has {}: the tokenizer "
            "in {} is not this model's",
            id, plan.spec.vocab_size, source.string()));
  calibration::CalibrationInputs inputs{.texts = texts};
  std::optional<ProgressBar> bar;
  if (isatty(STDERR_FILENO) == 1) {
    bar.emplace("calibrating", calibration::total_steps(inputs, std::ssize(plan.spec.layers)));
    inputs.progress = [&](int64_t tokens) { bar->set(tokens); };
  }
  WorkPool pool(options.num_threads);
  return calibration::calibrate(checkpoint, plan, format, inputs, pool, to);
}

std::string calibration_text(const std::vector<calibration::LayerReport>& layers) {
  std::string out = fmt::format("{:>7} {:>9} {:>9} {:>12} {:>15}\n", "layer", "matrices",
                                "outputs %", "calibrated %", "not calibrated");
  for (const calibration::LayerReport& each : layers) {
    const auto percent = [&](double squares) {
      return each.squares.all > 0 ? 100 * std::sqrt(squares / each.squares.all) : 0;
    };
    fmt::format_to(std::back_inserter(out), "{:>7} {:>9} {:>9.3f} {:>12.3f} {:>15}\n", each.layer,
                   each.num_matrices, percent(each.squares.plain), percent(each.squares.calibrated),
                   each.num_unseen);
  }
  return out;
}

}  // namespace espalier::apps
