// A LoRA adapter (Hu et al. 2021) as PEFT saves it: a folder with adapter_config.json and
// adapter_model.safetensors. Of each adapted matrix W of the model it holds two factors, and the
// matrix that is meant is W + scale * B A.
// Source: https://huggingface.co/docs/peft/developer_guides/checkpoint
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/safetensors.h"

namespace espalier {

// Of one matrix, whose tensor in the model is `module` + ".weight". The bytes of both tensors are
// borrowed from the file.
struct PeftModule {
  std::string module;  // "model.layers.0.self_attn.q_proj"
  CheckpointTensor a;  // [rank, in_features]
  CheckpointTensor b;  // [out_features, rank]
  float scale = 1;     // alpha / rank, or alpha / sqrt(rank) with use_rslora

  int32_t rank() const { return static_cast<int32_t>(a.shape[0]); }
  int64_t in_features() const { return a.shape[1]; }
  int64_t out_features() const { return b.shape[0]; }
};

// Move-only; thread-safe to read. The modules' bytes live as long as it does.
class PeftAdapter {
 public:
  // Reads the configuration and checks the tensors against it. kNotFound without one of the two
  // files, kDataLoss for a file that is damaged, kUnimplemented for what changes the mathematics
  // and is not computed (another peft_type, DoRA, trained biases, tokens, embeddings or whole
  // modules), and kInvalidArgument for tensors that are no pair of factors.
  static Result<PeftAdapter> open(const std::filesystem::path& folder);

  std::span<const PeftModule> modules() const { return modules_; }  // sorted by module
  int32_t rank_max() const;
  const std::filesystem::path& folder() const { return folder_; }

 private:
  PeftAdapter(std::filesystem::path folder, SafetensorsFile file)
      : folder_(std::move(folder)), file_(std::move(file)) {}

  std::filesystem::path folder_;
  SafetensorsFile file_;
  std::vector<PeftModule> modules_;
};

}  // namespace espalier
