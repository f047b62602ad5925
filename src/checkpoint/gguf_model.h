// What a GGUF file says of a language model, in the terms of Hugging Face's folders: config.json's
// fields, tensors' names and rows, the vocabulary.
// Source: llama.cpp's gguf-py/gguf/tensor_mapping.py and conversion.
// The functions are thread-safe.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/gguf_file.h"
#include "checkpoint/json_object.h"
#include "checkpoint/safetensors.h"
#include "seams/stored_vocabulary.h"

namespace espalier {

// The GGUF file that a model path means: itself, or the one in a folder without config.json (the
// first of its parts). Nothing for any other path.
std::optional<std::filesystem::path> find_gguf(const std::filesystem::path& model_path);

// config.json's fields. Architectures that are not mapped keep their GGUF name, for the registry to
// refuse. kDataLoss, by key, for what is missing from those fields or invalid in them.
Result<JsonObject> gguf_config(const GgufFile& file);
// The same as the text of a config.json, with this torch_dtype unless it is empty.
Result<std::string> gguf_config_text(const GgufFile& file, std::string_view torch_dtype = {});

// What rotations are divided by, for each pair of a head: rope_freqs.weight of models whose
// rope_scaling is Llama 3's. Its other parameters are Llama 3's own, as a GGUF cannot say them.
std::vector<float> llama3_rope_factors(double factor, double original_context, double theta,
                                       size_t num_pairs);

// The tensors by Hugging Face's names, with readers for those that are no plain arrays. `files`:
// the parts, which outlive the tensors; the first has the metadata. Rows of q and k are put back in
// the order that they had before conversion where the architecture's are interleaved.
Result<std::vector<CheckpointTensor>> gguf_tensors(const std::vector<GgufFile>& files);

Result<StoredVocabulary> gguf_vocabulary(const GgufFile& file);

}  // namespace espalier
