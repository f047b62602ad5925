// What becomes of a model's tensors and metadata in another file format or another element type:
// plans, which tensor_writer.h carries out. They borrow the files that they were made of.
// The functions are thread-safe.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/generation_config.h"
#include "checkpoint/gguf_file.h"
#include "checkpoint/tensor_writer.h"
#include "seams/stored_vocabulary.h"

namespace espalier {

// Element types of a GGUF that is written. Vectors, routers of experts and whatever is no weight of
// a linear layer stay F32; a matrix whose rows are no whole blocks becomes F16.
struct GgufTypes {
  const BlockEncoder* matrices = nullptr;
  const BlockEncoder* vocabulary = nullptr;  // the embedding and the output's matrix
};

struct GgufPlan {
  GgufMetadata metadata;
  std::vector<TensorToWrite> tensors;
};

// A GGUF in other types, whatever its architecture. `files`: its parts, of which one is made.
// kUnimplemented names a tensor whose type is not read.
Result<GgufPlan> plan_gguf(const std::vector<GgufFile>& files, const GgufTypes& types);

// A folder as a GGUF. kUnimplemented names an architecture, a field or a tensor that a GGUF cannot
// express, or that is not written yet: LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM and
// Qwen3ForCausalLM are. `name`: general.name.
Result<GgufPlan> plan_gguf(const Checkpoint& checkpoint, const JsonObject& config,
                           const GenerationConfig& generation, const StoredVocabulary& vocabulary,
                           std::string_view name, const GgufTypes& types);

// The tensors of a model under Hugging Face's names, all of one type: F32, F16 or BF16.
Result<std::vector<TensorToWrite>> plan_safetensors(const Checkpoint& checkpoint,
                                                    const BlockEncoder& type);

}  // namespace espalier
