// A draft head from its folder, or from that of the model that it drafts for.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "base/status.h"
#include "checkpoint/checkpoint.h"
#include "models/decoder_spec.h"
#include "models/model.h"
#include "models/program/cpu_draft_head.h"
#include "models/program/draft_target.h"
#include "models/storage_format.h"
#include "tensor/work_pool.h"

namespace espalier {

// config.json's spec; `target` is the model's own.
Result<DecoderSpec> read_draft_spec(const std::filesystem::path& folder, const DecoderSpec& target);

// Before weights take their time: check_draft_kind() of the folder's config.json.
Status check_draft_kind_of(const std::filesystem::path& folder, DraftSpec::Kind expected);

// The spec of the head that options.draft_path names, for whose sake `target` keeps states from
// here on; nothing where it names none. kUnimplemented says which models and options a head does
// not go with.
Result<std::optional<DecoderSpec>> plan_draft_head(const ModelLoadOptions& options,
                                                   DecoderSpec& target);

// The target's ids of the tokens that a head predicts among: d2t holds for each what its id exceeds
// its index by. Without d2t they are all ids. Fails by name for another type or shape, and for an
// id that the target does not have.
Result<std::vector<TokenId>> read_draft_ids(const Checkpoint& checkpoint, const DecoderSpec& spec);

// The weights of the spec; the model keeps the states that it reads. Its vocabulary may be divided.
Result<std::unique_ptr<program::CpuDraftHead>> load_draft_head(const std::filesystem::path& folder,
                                                               const DecoderSpec& spec,
                                                               const WeightTypes& types,
                                                               WorkPool& pool,
                                                               program::DraftTarget& target);

}  // namespace espalier
