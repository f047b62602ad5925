#include "models/load_draft_head.h"

#include <cstring>
#include <numeric>

#include "base/log.h"
#include "models/families/draft.h"
#include "models/weight_source.h"

namespace espalier {
namespace {

Status check_draft_target(const DecoderSpec& spec, const ModelLoadOptions& options) {
  if (options.pp_size != 1) {
    return error(StatusCode::kUnimplemented,
                 "draft heads are not divided into stages: set --speculative-algorithm to "
                 "COMBINED, or leave --pp-size out");
  }
  if (spec.pooling || spec.images) {
    return error(StatusCode::kUnimplemented,
                 "{} {}, and draft heads are for models of text that generate: leave "
                 "--speculative-algorithm out",
                 spec.architecture, spec.pooling ? "makes vectors" : "reads pictures");
  }
  return Status();
}

}  // namespace

Result<DecoderSpec> read_draft_spec(const std::filesystem::path& folder,
                                    const DecoderSpec& target) {
  auto config = read_model_config(folder);
  if (!config) return fail(config.error().with_context("the draft head"));
  return make_draft_spec(*config, target);
}

Status check_draft_kind_of(const std::filesystem::path& folder, DraftSpec::Kind expected) {
  const auto config = read_model_config(folder);
  if (!config) return config.error().with_context("the draft head");
  return check_draft_kind(*config, expected);
}

Result<std::optional<DecoderSpec>> plan_draft_head(const ModelLoadOptions& options,
                                                   DecoderSpec& target) {
  if (options.draft_path.empty()) return std::optional<DecoderSpec>();
  ESP_RETURN_IF_ERROR(check_draft_target(target, options));
  ESP_ASSIGN_OR_RETURN(DecoderSpec head, read_draft_spec(options.draft_path, target));
  target.kept_states = head.draft->target_layers;
  target.keeps_normed_states = head.draft->normed_states;
  return std::optional(std::move(head));
}

Result<std::vector<TokenId>> read_draft_ids(const Checkpoint& checkpoint, const DecoderSpec& spec) {
  const auto count = static_cast<size_t>(spec.vocab_size);
  std::vector<TokenId> ids(count);
  std::iota(ids.begin(), ids.end(), 0);
  const CheckpointTensor* d2t = checkpoint.find("d2t");
  const std::string folder = checkpoint.folder().string();
  if (d2t == nullptr) {
    if (spec.vocab_size == spec.draft->target_vocab_size) return ids;
    return fail(invalid_argument(
        "{}: there is no tensor 'd2t', which names the {} tokens of the draft vocabulary", folder,
        count));
  }
  if (d2t->dtype_name != "I64" || d2t->shape != std::vector<int64_t>{spec.vocab_size}) {
    return fail(
        invalid_argument("{}: 'd2t' must be I64 [{}], as draft_vocab_size says", folder, count));
  }
  for (size_t i = 0; i < count; ++i) {
    int64_t more = 0;
    std::memcpy(&more, d2t->bytes.data() + i * sizeof(more), sizeof(more));
    const int64_t most = spec.draft->target_vocab_size - static_cast<int64_t>(i);
    if (more < -static_cast<int64_t>(i) || more >= most) {
      return fail(invalid_argument("{}: 'd2t' makes of draft token {} one that is not below {}",
                                   folder, i, spec.draft->target_vocab_size));
    }
    ids[i] = static_cast<TokenId>(static_cast<int64_t>(i) + more);
  }
  return ids;
}

Result<std::unique_ptr<program::CpuDraftHead>> load_draft_head(const std::filesystem::path& folder,
                                                               const DecoderSpec& planned,
                                                               const WeightTypes& types,
                                                               WorkPool& pool,
                                                               program::DraftTarget& target) {
  ESP_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(folder));
  DecoderSpec spec = planned;
  spec.draft->own_head = spec.draft->is_mtp() && target.head_matrix() == nullptr;
  ESP_ASSIGN_OR_RETURN(std::vector<TokenId> ids, read_draft_ids(checkpoint, spec));
  CheckpointSource source(checkpoint, spec, types.type, &pool);
  ESP_ASSIGN_OR_RETURN(
      auto head, program::CpuDraftHead::create(spec, std::move(ids), types, source, pool, target));
  log_info("draft head loaded path={} parameters={} weight_bytes={} draft_vocab_size={}",
           folder.string(), head->info().num_parameters, head->info().weight_bytes,
           head->info().draft_vocab_size);
  return head;
}

}  // namespace espalier
