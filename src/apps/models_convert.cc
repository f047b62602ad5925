// espalier models convert, espalier models quantize: a model in another file format, or in fewer
// bits.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <memory>
#include <optional>

#include "apps/calibration.h"
#include "apps/command_line.h"
#include "apps/commands.h"
#include "apps/config.h"
#include "apps/progress.h"
#include "apps/rounding_errors.h"
#include "base/mapped_file.h"
#include "checkpoint/compressed_tensors.h"
#include "checkpoint/generation_config.h"
#include "checkpoint/gguf_model.h"
#include "checkpoint/model_transcode.h"
#include "checkpoint/staged_output.h"
#include "engine/text_io/open_tokenizer.h"
#include "models/model.h"
#include "models/model_plan.h"
#include "models/program/print.h"
#include "text/template/chat_template.h"
#include "text/tokenizer/stored_vocabulary_files.h"

namespace espalier::apps {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kShardBytes = 5'000'000'000;

struct ConvertOptions {
  fs::path source, destination;
  std::string type;
  bool force = false;
  CalibrationOptions calibration;
};

// The parts of a source that is a GGUF; nothing where it is a folder.
Result<std::optional<std::vector<GgufFile>>> open_parts(const fs::path& source) {
  const std::optional<fs::path> first = find_gguf(source);
  if (!first) return std::nullopt;
  ESP_ASSIGN_OR_RETURN(const std::vector<fs::path> paths, gguf_parts(*first));
  std::vector<GgufFile> parts;
  for (const fs::path& path : paths) {
    ESP_ASSIGN_OR_RETURN(GgufFile part, GgufFile::open(path));
    parts.push_back(std::move(part));
  }
  return parts;
}

Result<std::string> text_if_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored) ? read_text_file(path) : Result<std::string>("");
}

Result<StoredVocabulary> folder_vocabulary(const fs::path& folder, const JsonObject& config) {
  std::error_code ignored;
  if (!fs::exists(folder / "tokenizer.json", ignored))
    return fail(error(StatusCode::kUnimplemented,
                      "{} has no tokenizer.json: vocabularies in other files are not converted",
                      folder.string()));
  VocabularyFiles files;
  ESP_ASSIGN_OR_RETURN(files.tokenizer, read_text_file(folder / "tokenizer.json"));
  ESP_ASSIGN_OR_RETURN(files.config, text_if_there(folder / "tokenizer_config.json"));
  ESP_ASSIGN_OR_RETURN(const int64_t size, config.integer("vocab_size", 1, 1 << 24));
  ESP_ASSIGN_OR_RETURN(StoredVocabulary out, store_vocabulary(files, static_cast<size_t>(size)));
  if (const auto found = find_chat_template(folder)) out.chat_template = found->source;
  // The configuration may name several tokens that end an answer: a GGUF has two.
  ModelLoadOptions load;
  load.path = folder;
  ESP_ASSIGN_OR_RETURN(const ModelInfo info, read_model_info(load));
  for (const TokenId id : info.eos_ids) {
    if (!out.eos_id) out.eos_id = id;
    if (id != *out.eos_id && !out.eot_id) out.eot_id = id;
  }
  return out;
}

// ---- that the result says what the source says ----

Result<std::string> program_text(const fs::path& path, DecoderSpec& spec) {
  ModelLoadOptions options;
  options.path = path;
  options.dtype = "float32";
  ESP_ASSIGN_OR_RETURN(ModelPlan plan, plan_model(options));
  spec = std::move(plan.spec);
  ESP_ASSIGN_OR_RETURN(ProgramPlan program, plan_program(options, ProgramKind::kCpu));
  program.program.name.clear();  // Mistral's is Llama's
  return program::to_string(program.program);
}

// Numbers that a GGUF holds in 32 bits.
bool near(double a, double b) { return std::abs(a - b) <= 1e-6 * std::abs(a); }

bool same_rope(const RopeSpec& a, const RopeSpec& b) {
  return near(a.theta, b.theta) && a.scaling == b.scaling && near(a.factor, b.factor) &&
         a.rotary_dim == b.rotary_dim && near(a.low_freq_factor, b.low_freq_factor) &&
         near(a.high_freq_factor, b.high_freq_factor) && near(a.beta_fast, b.beta_fast) &&
         near(a.beta_slow, b.beta_slow) && near(a.attention_factor, b.attention_factor) &&
         (a.scaling == RopeSpec::Scaling::kNone ||
          a.original_max_positions == b.original_max_positions);
}

// A text on which vocabularies and their rules differ, with the template's own words and tokens.
Status compare_tokenizers(const fs::path& source, const fs::path& result) {
  ESP_ASSIGN_OR_RETURN(const auto before, open_tokenizer(source));
  ESP_ASSIGN_OR_RETURN(const auto after, open_tokenizer(result));
  std::string text =
      "It's 3,141.59 o'clock; I'LL  go\t\tto caf\u00e9 \u4f60\u597d \u0417\u0434\u0440\u0430\n\n "
      "\r\n"
      "def f(x): return x**2 != {\"a\": [1, 2]} \U0001f642  \u0645\u0631\u062d\u0628\u0627 "
      "12345678 ";
  text += before->chat_template();
  for (const bool special : {false, true}) {
    EncodeOptions options;
    options.add_special_tokens = special;
    options.parse_special = special;
    if (before->encode(text, options) != after->encode(text, options))
      return error(
          StatusCode::kInternal,
          "the result cuts texts into other tokens than {} does, so it is not kept; please "
          "report this model",
          source.string());
  }
  return {};
}

Status compare_sampling(const fs::path& source, const fs::path& result) {
  ESP_ASSIGN_OR_RETURN(const GenerationDefaults before, read_generation_defaults(source));
  ESP_ASSIGN_OR_RETURN(const GenerationDefaults after, read_generation_defaults(result));
  if (before.temperature != after.temperature || before.top_p != after.top_p ||
      before.min_p != after.min_p || before.repetition_penalty != after.repetition_penalty ||
      before.top_k != after.top_k)
    return error(StatusCode::kInternal,
                 "the result has other defaults of sampling than {} has, so it is not kept; please "
                 "report this model",
                 source.string());
  return {};
}

Status compare(const fs::path& source, const fs::path& result) {
  DecoderSpec before, after;
  ESP_ASSIGN_OR_RETURN(const std::string wanted, program_text(source, before));
  ESP_ASSIGN_OR_RETURN(const std::string found, program_text(result, after));
  if (wanted != found || !std::ranges::equal(before.ropes, after.ropes, same_rope))
    return error(StatusCode::kUnimplemented,
                 "{}: its configuration says more than the other format can, so the result would "
                 "be another model",
                 source.string());
  ESP_RETURN_IF_ERROR(compare_sampling(source, result));
  return compare_tokenizers(source, result);
}

// ---- the kinds of results ----

// A bar on a terminal; nothing elsewhere.
WriteProgress bar_of_writing(int64_t bytes) {
  if (isatty(STDERR_FILENO) != 1) return {};
  // Shared: functions are copied.
  return [bar = std::make_shared<ProgressBar>("writing", bytes, "B")](int64_t done) {
    bar->set(done);
  };
}

Status write_to_gguf(const fs::path& source, const GgufTypes& types, StagedOutput& output) {
  GgufPlan plan;
  ESP_ASSIGN_OR_RETURN(const auto parts, open_parts(source));
  std::optional<Checkpoint> checkpoint;
  if (parts) {
    ESP_ASSIGN_OR_RETURN(plan, plan_gguf(*parts, types));
  } else {
    ESP_ASSIGN_OR_RETURN(checkpoint, Checkpoint::open(source));
    ESP_ASSIGN_OR_RETURN(const JsonObject config, read_model_config(source));
    ESP_ASSIGN_OR_RETURN(const StoredVocabulary vocabulary, folder_vocabulary(source, config));
    const std::string name = fs::weakly_canonical(source).filename().string();
    ESP_ASSIGN_OR_RETURN(const GenerationConfig generation, read_generation_config(source));
    ESP_ASSIGN_OR_RETURN(plan, plan_gguf(*checkpoint, config, generation, vocabulary, name, types));
  }
  const int64_t bytes = total_bytes(plan.tensors);
  ESP_RETURN_IF_ERROR(output.require_space(bytes));
  return write_gguf(output.path(), plan.metadata, plan.tensors, bar_of_writing(bytes));
}

std::string_view torch_name(const BlockEncoder& type) {
  return type.name == "F32" ? "float32" : type.name == "F16" ? "float16" : "bfloat16";
}

Status write_folder(const fs::path& source, const BlockEncoder& type, StagedOutput& output) {
  ESP_ASSIGN_OR_RETURN(const auto parts, open_parts(source));
  if (!parts)
    return error(StatusCode::kInvalidArgument,
                 "{} is a folder already: name a result that ends in .gguf", source.string());
  ESP_ASSIGN_OR_RETURN(const JsonObject fields, gguf_config(parts->front()));
  for (const char* own : {"transposed_weights", "separate_experts"})
    if (fields.has(own))
      return error(StatusCode::kUnimplemented,
                   "{}: tensors of this architecture lie otherwise in a folder, which is not "
                   "written; name a result that ends in .gguf",
                   source.string());
  ESP_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(parts->front().path()));
  ESP_ASSIGN_OR_RETURN(const auto tensors, plan_safetensors(checkpoint, type));
  ESP_ASSIGN_OR_RETURN(const StoredVocabulary vocabulary, gguf_vocabulary(parts->front()));
  ESP_ASSIGN_OR_RETURN(const VocabularyFiles files, make_vocabulary_files(vocabulary));
  ESP_ASSIGN_OR_RETURN(const std::string config,
                       gguf_config_text(parts->front(), torch_name(type)));
  ESP_ASSIGN_OR_RETURN(GenerationConfig generation, read_generation_config(source));
  ESP_ASSIGN_OR_RETURN(generation.eos_token_ids, read_eos_token_ids(fields));
  const int64_t bytes = total_bytes(tensors);
  ESP_RETURN_IF_ERROR(output.require_space(bytes));
  std::error_code problem;
  if (!fs::create_directory(output.path(), problem))
    return error(StatusCode::kInternal, "the folder {} cannot be made: {}", output.path().string(),
                 problem.message());
  ESP_RETURN_IF_ERROR(write_file(output.path() / "config.json", config));
  ESP_RETURN_IF_ERROR(
      write_file(output.path() / "generation_config.json", generation_config_text(generation)));
  ESP_RETURN_IF_ERROR(write_file(output.path() / "tokenizer.json", files.tokenizer));
  ESP_RETURN_IF_ERROR(write_file(output.path() / "tokenizer_config.json", files.config));
  return write_safetensors(output.path(), tensors, kShardBytes, bar_of_writing(bytes));
}

// The files beside the weights: tokenizer, template, defaults.
Status copy_other_files(const fs::path& from, const fs::path& to) {
  static constexpr std::string_view kWeights[] = {".safetensors", ".bin", ".pt", ".pth", ".gguf"};
  std::error_code problem;
  for (const fs::directory_entry& entry : fs::directory_iterator(from, problem)) {
    const std::string name = entry.path().filename().string();
    const std::string end = entry.path().extension().string();
    if (!entry.is_regular_file(problem) || name == "config.json" || name.starts_with('.') ||
        name.ends_with(".index.json") || std::ranges::find(kWeights, end) != std::end(kWeights))
      continue;
    if (!fs::copy_file(entry.path(), to / name, problem)) break;
  }
  if (!problem) return {};
  return error(StatusCode::kInternal, "the files beside the weights cannot be copied from {}: {}",
               from.string(), problem.message());
}

Result<boost::json::object> read_config_fields(const fs::path& path) {
  ESP_ASSIGN_OR_RETURN(const std::string text, read_text_file(path));
  boost::system::error_code problem;
  boost::json::value config = boost::json::parse(text, problem);
  if (problem || !config.is_object())
    return fail(error(StatusCode::kDataLoss, "{}: it is no JSON object", path.string()));
  return std::move(config.as_object());
}

// Rounds matrices beside the output, before it is written.
Result<std::optional<RoundedMatrices>> calibrate_first(const fs::path& source,
                                                       const Checkpoint& checkpoint,
                                                       const CompressedFormat& format,
                                                       const CalibrationOptions& calibration,
                                                       const StagedOutput& output) {
  if (calibration.file.empty()) return std::nullopt;
  ESP_ASSIGN_OR_RETURN(RoundedMatrices rounded,
                       RoundedMatrices::create(output.path() / ".rounded"));
  ESP_ASSIGN_OR_RETURN(const auto layers,
                       calibrate_folder(source, checkpoint, format, calibration, rounded));
  ESP_RETURN_IF_ERROR(rounded.finish());
  fmt::print("{}", calibration_text(layers));
  return std::optional(std::move(rounded));
}

// A folder whose matrices are rounded, in compressed-tensors' format.
Status write_compressed(const fs::path& source, const CompressedFormat& format,
                        const CalibrationOptions& calibration, StagedOutput& output) {
  if (find_gguf(source))
    return error(StatusCode::kInvalidArgument,
                 "{} is a GGUF: make a folder of it first (espalier models convert), whose "
                 "matrices {} takes",
                 source.string(), format.name);
  ESP_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(source));
  ESP_ASSIGN_OR_RETURN(boost::json::object config, read_config_fields(source / "config.json"));
  // What cannot be written is refused before it is calibrated, which may take hours.
  const CompressedFormat& first =
      format.kind == CompressedFormat::Kind::kFp8Static ? *find_compressed_format("FP8") : format;
  ESP_ASSIGN_OR_RETURN(CompressedPlan plan, plan_compressed(checkpoint, first));
  const int64_t bytes = total_bytes(plan.tensors);
  ESP_RETURN_IF_ERROR(output.require_space(calibration.file.empty() ? bytes : 2 * bytes));
  std::error_code refused;
  if (!fs::create_directory(output.path(), refused))
    return error(StatusCode::kInternal, "the folder {} cannot be made: {}", output.path().string(),
                 refused.message());
  ESP_ASSIGN_OR_RETURN(const std::optional<RoundedMatrices> rounded,
                       calibrate_first(source, checkpoint, format, calibration, output));
  if (rounded) {
    ESP_ASSIGN_OR_RETURN(plan, plan_compressed(checkpoint, format, &*rounded));
  }
  config["quantization_config"] = boost::json::parse(plan.quantization_config);
  ESP_RETURN_IF_ERROR(copy_other_files(source, output.path()));
  ESP_RETURN_IF_ERROR(
      write_file(output.path() / "config.json", boost::json::serialize(config) + "\n"));
  return write_safetensors(output.path(), plan.tensors, kShardBytes,
                           bar_of_writing(total_bytes(plan.tensors)));
}

int64_t size_of(const fs::path& path) {
  std::error_code problem;
  if (!fs::is_directory(path, problem)) return static_cast<int64_t>(fs::file_size(path, problem));
  int64_t sum = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(path, problem))
    sum += static_cast<int64_t>(entry.file_size(problem));
  return sum;
}

// What is made: a GGUF or a folder of `types`, or a folder in a compressed format.
struct Wanted {
  GgufTypes types;
  const CompressedFormat* compressed = nullptr;
  bool rounds = false;  // says how far matrices are from those before
};

Status convert(const ConvertOptions& options, const Wanted& wanted) {
  ESP_ASSIGN_OR_RETURN(const fs::path source, resolve_model_path(options.source));
  ESP_ASSIGN_OR_RETURN(StagedOutput output,
                       StagedOutput::create(options.destination, options.force));
  const bool to_gguf = options.destination.extension() == ".gguf";
  if (wanted.compressed != nullptr)
    ESP_RETURN_IF_ERROR(write_compressed(source, *wanted.compressed, options.calibration, output));
  else
    ESP_RETURN_IF_ERROR(to_gguf ? write_to_gguf(source, wanted.types, output)
                                : write_folder(source, *wanted.types.matrices, output));
  ESP_RETURN_IF_ERROR(compare(source, output.path()));
  if (wanted.rounds) {
    ESP_ASSIGN_OR_RETURN(const auto errors, rounding_errors(source, output.path()));
    fmt::print("{}", errors_text(errors));
  }
  const int64_t bytes = size_of(output.path());
  ESP_RETURN_IF_ERROR(output.commit());
  fmt::print("{}: {:.1f} MB, {}\n", options.destination.string(), static_cast<double>(bytes) / 1e6,
             options.type);
  return {};
}

std::vector<std::string> type_names(bool quantised) {
  std::vector<std::string> out;
  for (const BlockEncoder& each : block_encoders())
    if ((block_type_of(each).elements > 1) == quantised) out.emplace_back(each.name);
  if (!quantised) return out;
  for (const CompressedFormat& each : compressed_formats()) out.emplace_back(each.name);
  return out;
}

// Only folders are calibrated, and scales of activations come from nothing else.
Status check_calibration(const ConvertOptions& options) {
  const bool calibrates = !options.calibration.file.empty();
  if (calibrates && find_compressed_format(options.type) == nullptr)
    return invalid_argument("--calibration: blocks of {} are rounded without it; leave it out",
                            options.type);
  if (!calibrates && options.type == "FP8_STATIC")
    return invalid_argument(
        "--type FP8_STATIC has scales of activations, which calibration finds: give a file of "
        "texts with --calibration");
  return {};
}

// GGUFs have blocks, folders compressed-tensors' formats.
Status check_name(const ConvertOptions& options) {
  const bool gguf = options.destination.extension() == ".gguf";
  if (gguf == (find_compressed_format(options.type) == nullptr)) return {};
  return gguf ? invalid_argument(
                    "{}: {} is a format of folders (safetensors), so the name does not end in "
                    ".gguf",
                    options.destination.string(), options.type)
              : invalid_argument(
                    "{}: blocks of {} are those of GGUF files, so the name ends in .gguf",
                    options.destination.string(), options.type);
}

void add_calibration(CalibrationOptions& options, SettingTable& table) {
  table.group("Calibration");
  table.path("calibration", options.file,
             "texts that the model is to be good at, a text file or .jsonl of strings or objects "
             "with a \"text\": matrices of a folder are rounded for the inputs that they have in "
             "them");
  table.integer("calibration-samples", options.samples, 1, 1 << 20, "of the texts");
  table.integer("calibration-length", options.length, 2, 1 << 20, "tokens of a sample, at most");
  table.integer("num-threads", options.num_threads, 0, 4096,
                "that calibrate; 0: one for each core");
}

int run(std::string name, std::string description, std::string footer, bool quantise,
        const std::vector<std::string>& args) {
  ConvertOptions options;
  options.type = quantise ? "Q8_0" : "BF16";
  SettingTable table;
  table.group("The result");
  table.choice("type", options.type, type_names(quantise),
               quantise
                   ? "what matrices become: blocks of a GGUF, whose embedding and output's "
                     "matrix keep 8 bits, or formats of a folder, whose embedding and head stay"
                   : "the type of the elements");
  table.toggle("force", options.force, "replace what is there under the result's name");
  if (quantise) add_calibration(options.calibration, table);
  CommandLine command{
      std::move(name), std::move(description), std::move(footer), "SOURCE RESULT", {}};
  if (const auto exit_code = parse_command_line(command, table, SettingTable(), args))
    return *exit_code;
  if (command.words.size() != 2)
    return report(
        invalid_argument("name the model and the result: {} {}", command.name, command.positional),
        kExitUsage);
  options.source = command.words[0];
  options.destination = command.words[1];
  if (quantise) {
    for (const Status& checked : {check_name(options), check_calibration(options)})
      if (!checked.ok()) return report(checked, kExitUsage);
  }
  Wanted wanted{.types = {.matrices = find_block_encoder(options.type)},
                .compressed = find_compressed_format(options.type),
                .rounds = quantise};
  wanted.types.vocabulary = quantise ? find_block_encoder("Q8_0") : wanted.types.matrices;
  if (const Status status = convert(options, wanted); !status.ok())
    return report(status, kExitFailure);
  return kExitOk;
}

}  // namespace

int run_models_convert(const std::vector<std::string>& args) {
  return run("espalier models convert",
             "Writes a model as one GGUF file, or a GGUF as a folder with config.json, "
             "tokenizer.json and safetensors, and keeps the result once it has been read back as "
             "the same model.",
             "Examples:\n"
             "  espalier models convert Qwen/Qwen3-0.6B qwen3.gguf\n"
             "  espalier models convert qwen3-q4.gguf qwen3-folder --type F32",
             false, args);
}

int run_models_quantize(const std::vector<std::string>& args) {
  return run(
      "espalier models quantize",
      "Writes a model in fewer bits: a folder or a GGUF as a GGUF file of blocks, or a folder "
      "as a folder of compressed-tensors' formats, which GPUs multiply and vLLM reads. Says "
      "how far each layer's matrices are from those before.",
      "Examples:\n"
      "  espalier models quantize Qwen/Qwen3-0.6B qwen3-q4.gguf --type Q4_0\n"
      "  espalier models quantize Qwen/Qwen3-0.6B qwen3-int4 --type INT4 --calibration texts.jsonl",
      true, args);
}

}  // namespace espalier::apps
