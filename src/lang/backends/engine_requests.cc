#include "lang/backends/engine_requests.h"

#include <utility>

#include "engine/images/place_images.h"
#include "lang/backends/http_json.h"

namespace espalier::lang {

EngineRequests::EngineRequests(std::shared_ptr<Engine> engine)
    : engine_(std::move(engine)),
      queue_(std::make_shared<SubmissionQueue>(
          int64_t{engine_->config().schedule.max_running_requests} +
          engine_->config().schedule.max_queued_requests)) {}

EngineRequests::~EngineRequests() {
  cancel("");
  queue_->wait_empty();
}

void EngineRequests::send(Submission s) {
  const std::string rid = s.request.rid;
  const int64_t num_samples = s.num_samples();
  if (queue_->admit(s) && !submit_now(s)) ended(rid, num_samples);
}

bool EngineRequests::submit_now(Submission& s) {
  const auto accepted = engine_->submit(std::move(s.request), std::move(s.sink));
  if (!accepted) s.refused(accepted.error());
  return accepted.has_value();
}

// Nothing of this object is touched once the last request is removed.
void EngineRequests::ended(const std::string& rid, int64_t num_samples) {
  const std::shared_ptr<SubmissionQueue> queue = queue_;
  std::vector<Submission> next = queue->remove(rid, num_samples);
  while (!next.empty()) {
    Submission s = std::move(next.back());
    next.pop_back();
    const std::string next_rid = s.request.rid;
    const int64_t count = s.num_samples();
    if (submit_now(s)) continue;
    for (Submission& more : queue->remove(next_rid, count)) next.push_back(std::move(more));
  }
}

void EngineRequests::cancel(const std::string& call) {
  for (Submission& s : queue_->take_waiting(call))
    s.refused(error(StatusCode::kAborted, "the call was cancelled"));
  for (const std::string& rid : queue_->rids(call)) engine_->abort(rid, Engine::AbortScope::kExact);
}

// A prompt with other placeholders stays as it is, for the engine refuses it with the reason.
std::vector<TokenId> EngineRequests::encode(const Prompt& prompt, std::string_view more) const {
  std::vector<TokenId> ids = encode_text(prompt, more);
  const auto& images = engine_->model_info().images;
  if (!images || prompt.media.empty()) return ids;
  return expand_placeholders(ids, *images, static_cast<int32_t>(prompt.media.size())).value_or(ids);
}

std::string EngineRequests::marked(const Prompt& prompt, std::string text) const {
  const auto& images = engine_->model_info().images;
  if (!images || prompt.media.empty()) return text;
  return mark_pictures(text, *images, prompt.media.size()).value_or(text);
}

std::vector<TokenId> EngineRequests::encode_text(const Prompt& prompt,
                                                 std::string_view more) const {
  if (prompt.joined == nullptr) {
    return engine_->tokenizer()->encode(marked(prompt, prompt.text + std::string(more)));
  }
  // All pictures stand behind the branches, for those behind pictures are not joined.
  std::vector<TokenId> ids = prompt.joined->ids;
  const std::vector<TokenId> rest = encode_part(
      marked(prompt, prompt.text.substr(prompt.joined->text.size()) + std::string(more)));
  ids.insert(ids.end(), rest.begin(), rest.end());
  return ids;
}

std::vector<TokenId> EngineRequests::encode_part(std::string_view text) const {
  return engine_->tokenizer()->encode(text, {.add_special_tokens = false});
}

std::string EngineRequests::cache_key(const Prompt& prompt) {
  return prompt.joined == nullptr ? std::string() : prompt.joined->key;
}

std::vector<ImageInput> EngineRequests::images_of(const Prompt& prompt) {
  std::vector<ImageInput> images;
  for (const Media& media : prompt.media)
    images.push_back({.read = [media] { return read_media_bytes(media); },
                      .source_bytes = static_cast<int64_t>(media.path.size())});
  return images;
}

GenerateRequest EngineRequests::request_of(std::string rid, const Prompt& prompt) const {
  GenerateRequest request{.rid = std::move(rid), .images = images_of(prompt)};
  if (prompt.joined == nullptr) {
    request.text = prompt.text;
  } else {
    request.input_ids = encode(prompt);
    request.extra_key = cache_key(prompt);
  }
  return request;
}

}  // namespace espalier::lang
