// The spec of a draft head beside a model. Pure functions; each spec is validated.
#pragma once

#include <optional>
#include <string_view>

#include "base/status.h"
#include "checkpoint/json_object.h"
#include "models/decoder_spec.h"

namespace espalier {

// Of heads with this architecture; nothing where it is not known here.
std::optional<DraftSpec::Kind> draft_kind(std::string_view architecture);

// kInvalidArgument where the config is of a head of another kind than `expected`, with the names of
// both. An architecture that is not known passes: make_draft_spec() refuses it.
Status check_draft_kind(const JsonObject& config, DraftSpec::Kind expected);

// config: of the head's folder, whose architecture says which of the two below it is.
// kUnimplemented for another kind of draft model, kInvalidArgument names a field that does not fit
// the target.
Result<DecoderSpec> make_draft_spec(const JsonObject& config, const DecoderSpec& target);

// A head with a folder of its own, trained beside the target (EAGLE-3).
Result<DecoderSpec> make_eagle3_spec(const JsonObject& config, const DecoderSpec& target);

// Whether checkpoints of this architecture have layers for multi-token prediction (MTP) that are
// known here.
bool has_mtp_layers(std::string_view architecture);

// The first MTP layer of a checkpoint of the target's architecture: of the target's own folder, or
// of another that has it in other formats. config: of that folder.
// REQUIRES: has_mtp_layers() of config's architecture.
Result<DecoderSpec> make_mtp_spec(const JsonObject& config, const DecoderSpec& target);

// Of a spec with one layer: its tensors lie below `prefix` instead of "model.layers.{}".
void move_layer(WeightNames& names, std::string_view prefix);

}  // namespace espalier
