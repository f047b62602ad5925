// What a model is, before any weight is loaded: load_model and the loaders of other back ends begin
// with it. Plain values; the functions read files and are thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/json_object.h"
#include "media/processor.h"
#include "models/decoder_spec.h"
#include "models/model.h"
#include "models/program/cost.h"
#include "models/program/program.h"
#include "models/program/report.h"
#include "models/storage_format.h"
#include "tensor/dtype.h"

namespace espalier {

struct ModelPlan {
  DecoderSpec spec;               // valid, with the requested context length
  DType type = DType::kBFloat16;  // what matrices are to be held in: kFloat32 or kBFloat16
  WeightTypes weights;            // the same on the CPU, which may hold them quantised
};

// Reads config.json and generation_config.json. Uses path, dtype, context_length, is_embedding and
// config_overrides. dtype may also be q8_0 or q4_k: see choose_weight_types.
Result<ModelPlan> plan_model(const ModelLoadOptions& options);

// The same of the encoder of a model's pictures.
struct EncoderPlan {
  DecoderSpec spec;
  ImageProcessorSpec processor;
  // What the decoder's matrices are held in, or what they were rounded from: the encoder's are
  // numbers, for it is small beside them.
  DType type = DType::kBFloat16;
  // Of videos, where another program makes their rows (TwoEncoders); null: the same does.
  std::shared_ptr<const EncoderPlan> videos;  // shared by the plan's copies
};
// Nothing where the model reads text alone.
Result<std::optional<EncoderPlan>> plan_image_encoder(const ModelLoadOptions& options);

// config.json (or a GGUF's metadata) with the options' config_overrides in place of its own fields.
Result<JsonObject> read_changed_config(const ModelLoadOptions& options);

// All that the engine must know of a model but weight_bytes. REQUIRES: a valid spec.
ModelInfo describe_model(const DecoderSpec& spec);

// What runs of a model, for readers: the program after a back end's passes, and how many bytes its
// weights have in memory.
struct ProgramPlan {
  program::Program program;
  program::WeightBytes weight_bytes;
  DType type = DType::kBFloat16;           // of what is not in blocks
  std::vector<program::Variant> variants;  // of the GPU's, in that type
};
enum class ProgramKind : uint8_t { kCpu, kGpu };
// Opens the checkpoint.
Result<ProgramPlan> plan_program(const ModelLoadOptions& options, ProgramKind kind);

// What a back end would hold the weights in: bytes by the type's name. Opens the checkpoint.
Result<std::map<std::string, int64_t>> read_weight_memory(const ModelLoadOptions& options,
                                                          ProgramKind kind);

}  // namespace espalier
